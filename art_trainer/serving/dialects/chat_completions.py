"""OpenAI's chat completions: the request, and its response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.dialects.batch_scheduler import GenerationOutput, TokenRun
from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.dialects.choices import ChoiceWriter, GenerationRequest, TopLogprobCount
from art_trainer.serving.dialects.conversation import (
    ChatMessage,
    ConversationRequest,
    Tool,
    ToolCall,
    argument_names,
    check_function,
)
from art_trainer.serving.dialects.replies import INCOMPLETE
from art_trainer.serving.dialects.requests import Generation, TokenCount
from art_trainer.serving.dialects.writers import Json
from art_trainer.serving.http.middleware import ApiError


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise ValueError("a tool needs a function with a name")
    check_function(function, "parameters")
    return tool


class ChatRequest(GenerationRequest, ConversationRequest):
    """A request for a chat completion."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationRequest.unsupported,
        "functions": ([],),
        "modalities": (["text"],),
        "continue_final_message": (False,),
        "add_generation_prompt": (True,),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool)]] = Field(default_factory=list)
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: TokenCount | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobCount = 0
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            message = f"top_logprobs is {self.top_logprobs}: send logprobs=true too"
            raise ApiError(message, param="top_logprobs")
        return self

    def conversation(self) -> list[ChatMessage]:
        """The messages that the model sees."""
        return self.messages

    def shown_tools(self) -> list[Tool]:
        """The tools that the model sees; none if it must not call any."""
        return [] if self.tool_choice == "none" else list(self.tools)

    def generation(self, defaults: SamplingParams) -> Generation:
        """What the request asks for; sampling fields that are absent are as in the defaults."""
        common = super().generation(defaults)
        return replace(
            common,
            max_length=self.max_completion_tokens or self.max_tokens,
            top_logprobs=self.top_logprobs if self.logprobs else None,
            tools=argument_names(self.shown_tools()),
            most_calls=None if self.parallel_tool_calls else 1,
        )

    def variables(self, chat: AgentChat) -> dict[str, Any]:
        """Variables of the chat template; one that it does not read would change nothing, unnoticed."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        for param, given in (
            ("chat_template_kwargs", self.chat_template_kwargs),
            ("reasoning_effort", effort),
        ):
            for name in given.keys() - chat.variables:
                known = ", ".join(sorted(chat.variables)) or "no variable"
                message = f"{param}: the model's chat template does not read {name!r}, it reads {known}"
                raise ApiError(message, param=param)
        return {**effort, **self.chat_template_kwargs}


class ChatWriter(ChoiceWriter):
    """Writes a chat completion."""

    id_prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def start(self, index: int) -> Iterator[Json]:
        """The chunk with the role."""
        yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}}) | self._prompt(index)

    def whole(self, outputs: Sequence[GenerationOutput]) -> Json:
        """All replies at once; the prompt's tokens stand beside the choices, as in vLLM."""
        return super().whole(outputs) | self._prompt(0)

    def _content(self, index: int, message: ChatMessage) -> Json:
        shown: Json = {"role": "assistant", "content": message.content, "refusal": None}
        if message.tool_calls:
            shown["content"] = message.content or None
            shown["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        return {"message": shown}

    def _text(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def _last(
        self, index: int, rest: str, calls: Sequence[ToolCall], run: TokenRun, finish: str
    ) -> Iterator[Json]:
        if rest:
            yield self._chunk(index, self._text(rest))
        for place, call in enumerate(calls):
            yield self._chunk(index, {"delta": {"tool_calls": [{"index": place, **call.model_dump()}]}})
        yield self._chunk(index, {"delta": {}}, run, finish)

    def _logprobs(self, run: TokenRun) -> Json:
        content = [self._entry(*pair) for pair in zip(run.token_ids, run.logprobs, strict=True)]
        for place, entry in enumerate(content):
            top = run.top_logprobs[place] if run.top_logprobs else ()
            entry["top_logprobs"] = [self._entry(*pair) for pair in top]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> Json:
        text = self._chat.token_text(token)
        # A token may be a part of a character; its bytes are then unknown.
        return {
            "token": text,
            "logprob": logprob,
            "bytes": None if INCOMPLETE in text else list(text.encode()),
        }
