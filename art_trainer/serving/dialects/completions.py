"""OpenAI's text completions, of texts or token ids: the request, and its response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.dialects.batch_scheduler import TokenRun
from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.dialects.choices import ChoiceWriter, GenerationRequest, TopLogprobCount
from art_trainer.serving.dialects.conversation import ChatMessage, ToolCall
from art_trainer.serving.dialects.replies import StopConfig
from art_trainer.serving.dialects.requests import Generation, StopString, TokenCount, as_list
from art_trainer.serving.dialects.writers import Json
from art_trainer.serving.http.middleware import ApiError

DEFAULT_TOKENS = 16
"""Length of a text completion if the client names none: OpenAI's default."""
_MAX_PROMPTS = 256
_MAX_REPLIES = 512
Prompt = str | list[int]


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _read_prompts(value: object) -> list[Prompt]:
    """One prompt or a list of them, each a text or a list of token ids."""
    many: list[Any] = value if isinstance(value, list) and not _is_ids(value) else [value]
    if len(many) > _MAX_PROMPTS:
        raise ValueError(f"{len(many)} prompts, at most {_MAX_PROMPTS} are allowed")
    for prompt in many:
        if not isinstance(prompt, str) and not (prompt and _is_ids(prompt)):
            raise ValueError("send a text, a list of token ids, or a list of either; none may be empty")
    return many


class CompletionRequest(GenerationRequest):
    """A request for text completions."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationRequest.unsupported,
        "suffix": ("",),
        "best_of": (1,),
        "use_beam_search": (False,),
    }

    prompt: Annotated[list[Prompt], PlainValidator(_read_prompts)]
    max_tokens: TokenCount | None = DEFAULT_TOKENS
    stop: Annotated[list[StopString], BeforeValidator(as_list), Field(max_length=64)] = Field(
        default_factory=list
    )
    stop_token_ids: list[int] = Field(default_factory=list, max_length=4096)
    include_stop_str_in_output: bool = False
    add_special_tokens: bool = True
    logprobs: TopLogprobCount | None = None

    @model_validator(mode="after")
    def _check_count(self) -> CompletionRequest:
        if len(self.prompt) * self.n > _MAX_REPLIES:
            message = f"{len(self.prompt)} prompts with n={self.n}: at most {_MAX_REPLIES} completions"
            raise ApiError(message, param="n")
        return self

    def generation(self, defaults: SamplingParams) -> Generation:
        """What the request asks for; its stop strings are the client's own only, as vLLM has it."""
        stops = tuple(self.stop)
        return replace(
            super().generation(defaults),
            stops=StopConfig(kept=stops) if self.include_stop_str_in_output else StopConfig(stops),
            prompt_field="prompt",
            top_logprobs=self.logprobs,
            stop_tokens=frozenset(self.stop_token_ids),
        )

    def prompts(self, chat: AgentChat) -> list[list[int]]:
        """The tokens of each prompt."""
        special = self.add_special_tokens
        return [
            chat.encode(prompt, param="prompt", add_special_tokens=special)
            if isinstance(prompt, str)
            else prompt
            for prompt in self.prompt
        ]


class CompletionWriter(ChoiceWriter):
    """Writes text completions."""

    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def _content(self, index: int, message: ChatMessage) -> Json:
        return self._text(message.content) | self._prompt(index)

    def _text(self, text: str) -> Json:
        return {"text": text}

    def _chunk(
        self, index: int, fields: Json, run: TokenRun | None = None, finish: str | None = None
    ) -> Json:
        chunk = super()._chunk(index, fields, run, finish)
        if not self._progress[index].begun:
            self._progress[index].begun = True
            chunk["choices"][0] |= self._prompt(index)
        return chunk

    def _last(
        self, index: int, rest: str, calls: Sequence[ToolCall], run: TokenRun, finish: str
    ) -> Iterator[Json]:
        yield self._chunk(index, self._text(rest), run, finish)

    def _logprobs(self, run: TokenRun) -> Json:
        text = self._chat.token_text
        tokens = [text(token) for token in run.token_ids]
        top = []
        for place, (token, logprob) in enumerate(zip(tokens, run.logprobs, strict=True)):
            others = run.top_logprobs[place] if run.top_logprobs else ()
            # Of tokens with the same text the most likely one stays.
            top.append({token: logprob, **{text(other): value for other, value in reversed(others)}})
        return {
            "tokens": tokens,
            "token_logprobs": run.logprobs,
            "top_logprobs": top,
            "text_offset": list(accumulate(map(len, tokens), initial=0))[: len(tokens)],
        }
