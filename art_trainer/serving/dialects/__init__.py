"""OpenAI's and Anthropic's APIs for a policy in training, with continuous batching for all clients."""

from art_trainer.serving.dialects.router import dialect_router
from art_trainer.serving.dialects.served_policy import ServedPolicy

__all__ = ["ServedPolicy", "dialect_router"]
