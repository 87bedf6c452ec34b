"""A model that is loaded with one version of the weights, and the thread that samples from it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import nn

from art_trainer.decoding import TokenSequence, common_prefix
from art_trainer.serving.asked import Choice
from art_trainer.serving.live_sampler import LiveSampler
from art_trainer.serving.model_copy import copy_weights
from art_trainer.transformers_policy import TransformersPolicy

_WORTH_KEEPING = 16
"""Contexts that share fewer tokens have nothing in common but the template."""


class LoadedVersion:
    """Samples by one version of the weights at a time, and goes on where a context was left.

    Args:
        policy: The model, and how it samples; nobody else changes it.
        version: Of the weights it has; ``None``: they stand for none yet, and nobody asks for them.

    Attributes:
        policy: As given.
        sampler: Samples for it.
        version: As given, or as :meth:`load` was told last.
    """

    def __init__(self, policy: TransformersPolicy, version: int | None) -> None:
        self.policy = policy
        self.version = version
        self.sampler = LiveSampler(policy)
        self._kept: list[TokenSequence] = []  # the contexts of newest replies, oldest first
        self._lock = threading.Lock()

    def load(self, source: nn.Module, version: int) -> None:
        """Take a model's present weights, when the requests have ended that these ones began.

        Raises:
            RuntimeError: It is closed, or the model is made otherwise.
        """
        with self.sampler.paused():
            copy_weights(source, self.policy.model)
            self.policy.version = self.version = version
            with self._lock:
                known, self._kept = self._kept, []
            self.sampler.drop(known)

    def context(self, token_ids: Sequence[int]) -> TokenSequence:
        """What the decoder knows of the context that this one continues, or of none."""
        with self._lock:
            shared = [common_prefix(known.tokens, token_ids) for known in self._kept]
            best = max(range(len(shared)), key=shared.__getitem__, default=0)
            if shared and shared[best] >= _WORTH_KEEPING:
                return self._kept.pop(best)
        return fresh()

    def release(self, choices: Sequence[Choice]) -> None:
        """Keep the contexts that a client may come back with, as many as there are rows."""
        sequences = [choice.question.sequence for choice in choices if choice.done]
        with self._lock:
            self._kept += sequences
            too_many = max(0, len(self._kept) - self.policy.max_batch)
            given_up, self._kept = self._kept[:too_many], self._kept[too_many:]
        self.sampler.drop(given_up)


def fresh() -> TokenSequence:
    """A context of which nothing is known."""
    return TokenSequence([], group=0)
