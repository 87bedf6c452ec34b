"""The environments. They import as ``art_gym.envs``: the folder's own name would be too common for site-packages."""

if __name__ != "art_gym.envs":
    raise ImportError(f"import `art_gym.envs`, not `{__name__}`")
