"""OpenAI's API, and what every server of it here shares: requests, answers, and one batch for all clients."""

from art_trainer.serving.openai_router import openai_router
from art_trainer.serving.served_policy import ServedPolicy

__all__ = ["ServedPolicy", "openai_router"]
