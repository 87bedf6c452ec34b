"""What OpenAI's chat and text completions have in common: sampling fields, and responses made of choices."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.dialects.batch_scheduler import GenerationJob, GenerationOutput, TokenRun
from art_trainer.serving.dialects.conversation import ChatMessage, ToolCall
from art_trainer.serving.dialects.replies import StopConfig
from art_trainer.serving.dialects.requests import (
    OPENAI_LABELS,
    DialectRequest,
    Generation,
    ModelName,
    StopString,
    StrictModel,
    Temperature,
    TokenCount,
    TopP,
    as_list,
)
from art_trainer.serving.dialects.writers import Json, ResponseWriter


class StreamOptions(StrictModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


TopLogprobCount = Annotated[int, Field(ge=0, le=20)]


class GenerationRequest(DialectRequest):
    """Fields that both completions have in common; sampling fields as in ``SamplingParams``."""

    labels = OPENAI_LABELS
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
        "response_format": ({"type": "text"},),
        "ignore_eos": (False,),
        "min_tokens": (0,),
        "echo": (False,),
    }

    model: ModelName = ""
    max_tokens: TokenCount | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=-1), AfterValidator(lambda k: max(k, 0))] | None = None
    """-1 means all tokens in vLLM, as 0 does here."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    stop: Annotated[list[StopString], BeforeValidator(as_list), Field(max_length=4)] = Field(
        default_factory=list
    )

    def generation(self, defaults: SamplingParams) -> Generation:
        """What the request asks for; sampling fields that are absent are as in the defaults."""
        return Generation(
            model=self.model,
            sampling=self.override(defaults),
            stops=StopConfig(tuple(self.stop), defaults.stop_strings),
            max_length=self.max_tokens,
            seed=self.seed,
            count=self.n,
            stream=self.stream,
        )


class ChoiceWriter(ResponseWriter):
    """Writes the choices of a completion."""

    request: GenerationRequest
    id_prefix: str
    whole_object: str
    chunk_object: str
    last_line = "data: [DONE]\n\n"
    _sampled = 0

    def whole(self, outputs: Sequence[GenerationOutput]) -> Json:
        """All replies at once."""
        choices = []
        for index, output in enumerate(outputs):
            message = self.read(output, index)
            finish = _finish_reason(message, output)
            choice = {"index": index, **self._content(index, message), "finish_reason": finish}
            choices.append(choice | self._tokens(output.run))
            self._sampled += len(output.run.token_ids)
        return {**self._head(), "object": self.whole_object, "choices": choices, "usage": self._usage()}

    def start(self, index: int) -> Iterator[Json]:
        """Chunks before a reply."""
        yield from ()

    def delta(self, index: int, job: GenerationJob) -> Iterator[Json]:
        """A chunk with text of an unfinished reply that is new and certain."""
        grown = self._advance(index, job)
        if grown is not None:
            text, run = grown
            yield self._chunk(index, self._text(text), run)

    def finish(self, index: int, output: GenerationOutput) -> Iterator[Json]:
        """Chunks that complete a reply."""
        progress, message = self._progress[index], self.read(output, index)
        self._sampled += len(output.run.token_ids)
        rest, run = message.content.removeprefix(progress.text), output.run.since(progress.reported)
        yield from self._last(index, rest, message.tool_calls, run, _finish_reason(message, output))

    def end(self) -> Iterator[Json]:
        """The chunk after all replies with the numbers of tokens, if the client asked for it."""
        if self.request.stream_options.include_usage:
            yield {**self._head(), "object": self.chunk_object, "choices": [], "usage": self._usage()}

    @abc.abstractmethod
    def _content(self, index: int, message: ChatMessage) -> Json: ...

    @abc.abstractmethod
    def _text(self, text: str) -> Json: ...

    @abc.abstractmethod
    def _last(
        self, index: int, rest: str, calls: Sequence[ToolCall], run: TokenRun, finish: str
    ) -> Iterator[Json]: ...

    @abc.abstractmethod
    def _logprobs(self, run: TokenRun) -> Json: ...

    def _head(self) -> Json:
        return {"id": f"{self.id_prefix}-{self._id}", "created": self._created, "model": self._model}

    def _prompt(self, index: int) -> Json:
        """The prompt's tokens, if the client asked for them."""
        if not self.request.return_token_ids:
            return {}
        return {"prompt_token_ids": list(self._prompts[index // self.generation.count])}

    def _usage(self) -> dict[str, int]:
        read, sampled = sum(map(len, self._prompts)), self._sampled
        return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}

    def _chunk(
        self, index: int, fields: Json, run: TokenRun | None = None, finish: str | None = None
    ) -> Json:
        choice = {"index": index, **fields, "finish_reason": finish}
        choice |= {"logprobs": None} if run is None else self._tokens(run)
        return {**self._head(), "object": self.chunk_object, "choices": [choice]}

    def _tokens(self, run: TokenRun) -> Json:
        """What a choice reports of its tokens."""
        wanted = self.generation.top_logprobs is not None
        fields: Json = {"logprobs": self._logprobs(run) if wanted else None}
        if self.request.return_token_ids:
            fields["token_ids"] = run.token_ids
        return fields


def _finish_reason(message: ChatMessage, output: GenerationOutput) -> str:
    """OpenAI's word for why a reply ended."""
    if message.tool_calls:
        return "tool_calls"
    return "length" if output.truncated else "stop"
