"""Chat completions, at once or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_trainer.serving.chat_request import ChatRequest
from art_trainer.serving.live_sampler import TokenRun
from art_trainer.serving.replies import ChatReply
from art_trainer.serving.wire import TokenTexts, usage


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One request's answer on the wire."""

    id: str
    model: str
    request: ChatRequest
    texts: TokenTexts
    prompt_ids: Sequence[int]
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, replies: Sequence[ChatReply]) -> dict[str, Any]:
        """Replies as a chat completion."""
        choices = []
        for index, reply in enumerate(replies):
            choice: dict[str, Any] = {
                "index": index,
                "message": reply.message.to_json(),
                "finish_reason": _finish_reason(reply),
            }
            choices.append(choice | self._tokens(reply.sampled.run()))
        answer = {**self._head("chat.completion"), "choices": choices, "usage": self._usage(replies)}
        if self.request.terms.token_ids:
            answer["prompt_token_ids"] = list(self.prompt_ids)
        return answer

    def first_chunk(self, index: int = 0) -> dict[str, Any]:
        """The chunk that says who speaks."""
        chunk = self._chunk(index, {"role": "assistant", "content": ""})
        if self.request.terms.token_ids:
            chunk["prompt_token_ids"] = list(self.prompt_ids)
        return chunk

    def words(self, words: str, index: int = 0, run: TokenRun | None = None) -> dict[str, Any]:
        """A chunk with words of a reply that is not complete.

        Args:
            words: What is said.
            index: In which choice.
            run: Tokens to report with it.
        """
        return self._chunk(index, {"content": words}, run=run)

    def last_chunks(
        self, reply: ChatReply, said: str, index: int = 0, reported: int = 0
    ) -> Iterator[dict[str, Any]]:
        """The chunks of a choice after the words that were streamed while they were sampled.

        Args:
            reply: The reply, now complete.
            said: The words that were streamed.
            index: In which choice.
            reported: How many of its tokens were reported with them.
        """
        rest = reply.message.content.removeprefix(said)
        if rest:
            yield self.words(rest, index)
        for place, call in enumerate(reply.message.calls):
            yield self._chunk(index, {"tool_calls": [{"index": place, **call.to_json()}]})
        yield self._chunk(index, {}, _finish_reason(reply), reply.sampled.run(reported))

    def closing(self, replies: Sequence[ChatReply]) -> Iterator[dict[str, Any]]:
        """The chunks after all choices: how many tokens it took, where the client asked for that."""
        if self.request.terms.include_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(replies)}

    def _usage(self, replies: Sequence[ChatReply]) -> dict[str, int]:
        return usage(len(self.prompt_ids), sum(len(reply.sampled.token_ids) for reply in replies))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(
        self, index: int, delta: Mapping[str, Any], finish: str | None = None, run: TokenRun | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": dict(delta), "finish_reason": finish, "logprobs": None}
        if run is not None:
            choice |= self._tokens(run)
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _tokens(self, run: TokenRun) -> dict[str, Any]:
        """What a choice says of its tokens."""
        terms = self.request.terms
        told: dict[str, Any] = {"logprobs": None}
        if terms.logprobs is not None:
            told["logprobs"] = self.texts.chat_logprobs(run)
        if terms.token_ids:
            told["token_ids"] = list(run.token_ids)
        return told


def _finish_reason(reply: ChatReply) -> str:
    if reply.message.calls:
        return "tool_calls"
    return "length" if reply.cut else "stop"
