"""What every episode of a run keeps to: one that does not would break the learner, and each resume again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from art_trainer.episodes import Episode, Span, TokenHistory
from art_trainer.transformers_policy import TransformersPolicy


@dataclass(frozen=True, slots=True)
class EpisodeBounds:
    """Holds episodes from elsewhere, in the protocol's form, against the model that will learn from them.

    A worker with another tokenizer or another environment need not lie to send what no model can read: a
    token beyond the vocabulary ends the learner, on a GPU for good, and what is in the journal by then would
    end it again each time the run goes on.

    Attributes:
        vocabulary: How many tokens the model can read.
        max_context: Most tokens of a history; ``None``: as many as a message holds.
    """

    vocabulary: int
    max_context: int | None = None

    @classmethod
    def of(cls, policy: TransformersPolicy) -> Self:
        """The bounds of a policy's episodes."""
        embedding = policy.model.get_input_embeddings()  # type: ignore[operator]
        return cls(int(embedding.weight.shape[0]), policy.max_context)

    def fault(self, episode: Episode) -> str | None:
        """Say what of an episode is out of bounds; ``None``: nothing."""
        found = (self._fault_of(history, episode) for history in episode.histories)
        return next((fault for fault in found if fault is not None), None)

    def _fault_of(self, history: TokenHistory, episode: Episode) -> str | None:
        length = sum(len(span.token_ids) for span in history.spans)
        if self.max_context is not None and length > self.max_context:
            return f"a history has {length} tokens, the context holds {self.max_context}"
        found = (self._fault_in(span, episode) for span in history.spans)
        return next((fault for fault in found if fault is not None), None)

    def _fault_in(self, span: Span, episode: Episode) -> str | None:
        if span.token_ids and not (min(span.token_ids) >= 0 and max(span.token_ids) < self.vocabulary):
            odd = next(token for token in span.token_ids if not 0 <= token < self.vocabulary)
            return f"it has the token {odd}, the model knows those from 0 to {self.vocabulary - 1}"
        # The turn in which an episode broke may have tokens and no more.
        if span.turn is not None and span.turn >= len(episode.turns) and not episode.failed:
            return f"it has tokens of turn {span.turn}, and {len(episode.turns)} turns"
        return None
