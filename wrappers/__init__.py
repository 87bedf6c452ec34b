"""What changes an environment from outside. Imports as ``art_gym.wrappers``."""

if __name__ != "art_gym.wrappers":
    raise ImportError(f"import `art_gym.wrappers`, not `{__name__}`")

from art_gym.wrappers.record_episodes import RecordEpisodes
from art_gym.wrappers.rubric_reward import RubricReward
from art_gym.wrappers.text_adapter import TextAdapter

__all__ = ["RecordEpisodes", "RubricReward", "TextAdapter"]
