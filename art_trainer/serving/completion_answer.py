"""Text completions, at once or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_trainer.serving.completion_request import CompletionRequest
from art_trainer.serving.live_sampler import Sampled, TokenRun
from art_trainer.serving.replies import is_cut
from art_trainer.serving.wire import TokenTexts, usage


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """One request's answer on the wire; the choices of the first prompt come first."""

    id: str
    model: str
    request: CompletionRequest
    texts: TokenTexts
    prompts: Sequence[Sequence[int]]
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def count(self) -> int:
        """How many choices there are."""
        return len(self.prompts) * self.request.terms.count

    def whole(self, completions: Sequence[tuple[str, Sampled]]) -> dict[str, Any]:
        """Completions, each a text and its tokens."""
        choices = [
            self._choice(index, text, sampled.run(), 0, sampled)
            for index, (text, sampled) in enumerate(completions)
        ]
        sampled_tokens = sum(len(sampled.token_ids) for _, sampled in completions)
        return {**self._head(), "choices": choices, "usage": self._usage(sampled_tokens)}

    def chunk(
        self, index: int, words: str, run: TokenRun, reported: int, sampled: Sampled | None = None
    ) -> dict[str, Any]:
        """A piece of one completion.

        Args:
            index: Which choice.
            words: What is new.
            run: The tokens that are new.
            reported: How many tokens there were before.
            sampled: The whole completion, with its last piece.
        """
        return {**self._head(), "choices": [self._choice(index, words, run, reported, sampled)]}

    def closing(self, sampled_tokens: int) -> Iterator[dict[str, Any]]:
        """The chunks after all choices: how many tokens it took, where the client asked for that."""
        if self.request.terms.include_usage:
            yield {**self._head(), "choices": [], "usage": self._usage(sampled_tokens)}

    def _choice(
        self, index: int, text: str, run: TokenRun, reported: int, sampled: Sampled | None
    ) -> dict[str, Any]:
        terms = self.request.terms
        finish = None if sampled is None else "length" if is_cut(sampled) else "stop"
        choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": finish, "logprobs": None}
        if terms.logprobs is not None:
            choice["logprobs"] = self.texts.completion_logprobs(run)
        if terms.token_ids:
            choice["token_ids"] = list(run.token_ids)
            if not reported:
                choice["prompt_token_ids"] = list(self.prompts[index // terms.count])
        return choice

    def _usage(self, sampled_tokens: int) -> dict[str, int]:
        return usage(sum(len(prompt) for prompt in self.prompts), sampled_tokens)

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
