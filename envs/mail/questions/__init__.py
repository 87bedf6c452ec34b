"""Questions about a mailbox: about generated worlds and about imported mail."""

from art_gym.envs.mail.questions.generated import world_questions
from art_gym.envs.mail.questions.imported import known_item_questions
from art_gym.envs.mail.questions.model import Question

__all__ = ["Question", "known_item_questions", "world_questions"]
