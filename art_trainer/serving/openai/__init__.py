"""OpenAI's API for a policy in training: requests, responses, and continuous batching for all clients."""

from art_trainer.serving.openai.router import openai_router
from art_trainer.serving.openai.served_policy import ServedPolicy

__all__ = ["ServedPolicy", "openai_router"]
