"""What changes an environment from outside. Imports as ``art_gym.wrappers``."""

if __name__ != "art_gym.wrappers":
    raise ImportError(f"import `art_gym.wrappers`, not `{__name__}`")
