"""The environments. They import as ``art_gym.envs``; ``envs`` alone would be too common a name."""

if __name__ != "art_gym.envs":
    raise ImportError(f"import `art_gym.envs`, not `{__name__}`")
