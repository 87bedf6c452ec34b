"""What changes an environment from outside. Imports as ``art_gym.wrappers``."""

if __name__ != "art_gym.wrappers":
    raise ImportError(f"import `art_gym.wrappers`, not `{__name__}`")

from art_gym.wrappers.record_episodes import RecordEpisodes

__all__ = ["RecordEpisodes"]
