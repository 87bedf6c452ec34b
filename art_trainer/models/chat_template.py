"""Chat messages to tokens, so that what a model once sampled is never tokenised again.

A context begins as the tokenizer's chat template renders it. After that, only the text that the template
writes between two replies (end of turn, observation, generation prompt) is encoded and appended. Some
templates rewrite the past: they drop thinking, or move the tools. Their rendering no longer begins with
what the model saw. :meth:`ChatFormat.continuation` then returns ``None``, and :class:`TokenHistoryBuilder`
starts a new token history from :meth:`ChatFormat.prompt`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from art_gym.base import without_tool_list
from art_trainer.models.rotary import frequency_limit
from art_trainer.types import Span, TokenHistory

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

PLAIN_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For tokenizers without a chat template."""

# Texts that no template treats specially, to find where it puts a message's content.
_ASK, _SAID, _SEEN = "first words asked", "placeholder reply said", "next words seen"
_SAID_AGAIN, _SEEN_AGAIN = "second reply said", "last words seen"

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SMALL_MODEL_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}" + USER + "{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}" + ASSISTANT + "{{ message['content'] }}" + END + "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)
"""The chat template of the project's own small models; it has no place for a system message."""

PROMPT_DATE = "26 Jul 2024"
"""Passed as ``date_string`` to templates that write today's date (Llama 3.1, 3.2); it is their own default.
With the clock's date a run resumed a day later would read other prompts."""


@dataclass(frozen=True, slots=True)
class _TurnSeparator:
    """What a template writes around the second turn of a conversation."""

    head: str
    """All before the reply."""
    end: str
    """The end-of-turn token's text."""
    before: str
    """From there to the observation."""
    after: str
    """From the observation to the start of the next reply."""


class ChatFormat:
    """Renders conversations with a tokenizer's chat template and encodes them.

    A system message that the template has no place for is put before the first user message, unless the
    tokenizer was saved with ``omit_system=True`` (for models too small for instructions).

    Args:
        tokenizer: With a chat template, or else with an end-of-sequence token for the plain built-in format.
        history_window: How many turns the model sees, the present one included, beside the system message;
            ``None`` for what the tokenizer was saved with, or else all. With 1 every turn is a short context
            of its own, which suits observations that hold the whole state, such as a board. It is saved with
            the tokenizer, so that a model is played as it was trained.

    Attributes:
        tokenizer: The tokenizer to save beside the model.
        end_of_turn: The token that ends a reply.

    Raises:
        ValueError: If the tokenizer has neither, its template does not write an assistant's reply, or
            ``history_window`` is below 1.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, history_window: int | None = None) -> None:
        if history_window is not None and history_window < 1:
            raise ValueError(f"history_window must be at least 1, got {history_window}")
        if history_window is not None:
            # A copy: other policies may use the caller's.
            tokenizer = copy.copy(tokenizer)
            tokenizer.init_kwargs = {**tokenizer.init_kwargs, "history_window": history_window}
        self.tokenizer = tokenizer
        self.history_window: int | None = tokenizer.init_kwargs.get("history_window")
        self._template: str | None = None
        if not tokenizer.chat_template:
            if tokenizer.eos_token is None:
                raise ValueError(
                    "the tokenizer has no chat template and no eos_token, so no reply could ever end; "
                    "set tokenizer.chat_template or tokenizer.eos_token"
                )
            self._template = PLAIN_TEMPLATE
        self._omits_system = bool(tokenizer.init_kwargs.get("omit_system", False))
        self._folds_system = False
        with_system = [_message("system", _SEEN), _message("user", _ASK)]
        self._folds_system = not (self._omits_system or self._writes(_SEEN, with_system))
        self._lists_tools = False
        self._lists_tools = self._writes(_PROBE, [_message("user", _ASK)], _PROBE_TOOLS)
        self.end_of_turn, self._end_text = self._find_end_of_turn()
        self._last_prompt: tuple[list[Message], Tools, list[int]] | None = None
        self._separator = lru_cache(maxsize=4)(self._find_separator)
        self._keeps_reply = lru_cache(maxsize=4096)(self._writes_reply_verbatim)
        # The attempts of a group often see the same observation.
        self._shown = lru_cache(maxsize=4096)(self._rendered_observation)
        self._cached_encode = lru_cache(maxsize=4096)(self.encode)

    def prompt(self, messages: Sequence[Message], tools: Tools = (), **variables: Any) -> list[int]:
        """Return the whole conversation as tokens, the generation prompt included.

        Args:
            messages: Chat messages, the last one from the user.
            tools: Tool schemas in OpenAI's format.
            variables: Further variables of the template.
        """
        messages = apply_history_window(messages, self.history_window)
        if variables:
            return self.encode(self.render(messages, tools, add_generation_prompt=True, **variables))
        if self._last_prompt is not None and self._last_prompt[:2] == (list(messages), tools):
            return list(self._last_prompt[2])
        token_ids = self.encode(self.render(messages, tools, add_generation_prompt=True))
        self._last_prompt = [dict(message) for message in messages], tools, token_ids
        return list(token_ids)

    def continuation(
        self, messages: Sequence[Message], tools: Tools = (), *, appended_only: bool = False
    ) -> list[int] | None:
        """Return the tokens between the last reply's end-of-turn token and the start of the next reply.

        Space around a reply that the template drops does not count as rewriting: the reply stays as sampled.

        Args:
            messages: The conversation, ending with a reply and the observation after it.
            tools: The same as in :meth:`prompt`.
            appended_only: Whether every earlier turn was appended by this method, none rewritten. Then only
                the newest is checked; else the whole conversation is rendered, with and without it.

        Returns:
            The tokens to append; ``None`` if the template would rewrite what came before, or the window
            moves on, so that the conversation has to be rendered again.
        """
        if self.history_window is not None:
            return None
        reply, observation = messages[-2], messages[-1]
        if (reply["role"], observation["role"]) != ("assistant", "user"):
            roles = [message["role"] for message in messages[-2:]]
            raise ValueError(f"a continuation follows a reply (assistant) and a user message, got {roles}")
        has_system = messages[0]["role"] == "system" and not (self._folds_system or self._omits_system)
        kind = has_system, bool(tools)
        separator = self._separator(*kind)
        if separator is None or not self._keeps_reply(*kind, str(reply["content"])):
            return None
        shown = self._shown(*kind, str(observation["content"]))
        if shown is None:
            return None
        new = separator.before + shown + separator.after
        if not appended_only:
            past = self.render(messages[:-2], tools, add_generation_prompt=True)
            now = self.render(messages, tools, add_generation_prompt=True)
            said = _between(now, past.rstrip(), separator.end + new)
            if said is None or said.strip() != str(reply["content"]).strip():
                return None
        return list(self._cached_encode(new))

    def reply(self, text: str) -> list[int]:
        """Return a reply's tokens and the end-of-turn token, as a model should sample them."""
        return [*self.encode(text), self.end_of_turn]

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        *,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """Render the conversation as text.

        If the template lists the tools, in the form that the model was trained to call them, an environment's
        own list and its example of a call are left out.
        """
        shown = [dict(message) for message in messages]
        if tools and self._lists_tools:
            for message in shown:
                if message["role"] == "system":
                    message["content"] = without_tool_list(message["content"])
        rendered = self.tokenizer.apply_chat_template(
            _folded(shown) if self._folds_system else shown,
            tools=[dict(tool) for tool in tools] or None,
            chat_template=self._template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **{"date_string": PROMPT_DATE, **variables},
        )
        assert isinstance(rendered, str)
        return rendered

    def encode(self, text: str) -> list[int]:
        """Tokenise rendered text: special tokens as written, none added."""
        token_ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens, special ones included: tool calls may be written with them."""
        text = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def _writes(self, mark: str, messages: Sequence[Message], tools: Tools = ()) -> bool:
        """Whether the template has a place for what holds a mark; some raise, some ignore it."""
        try:
            return mark in self.render(messages, tools)
        except (jinja2.TemplateError, TypeError):  # DeepSeek's cannot write arguments that are an object
            return False

    def _find_end_of_turn(self) -> tuple[int, str]:
        """Return the token after a reply (or else the end-of-sequence token) and its text."""
        rendered = self.render([_message("user", _ASK), _message("assistant", _SAID)])
        _, found, tail = rendered.partition(_SAID)
        if not found:
            raise ValueError("the chat template does not write an assistant message's content")
        # Llama 2 writes a space before its end token, and a space must not end a reply.
        end = tail.lstrip() or tail
        token_ids = self.encode(end)
        if token_ids:
            return token_ids[0], tail.removesuffix(end) + self.decode(token_ids[:1])
        if self.tokenizer.eos_token_id is None:
            raise ValueError("the chat template writes nothing after a reply and there is no eos_token")
        return int(self.tokenizer.eos_token_id), ""

    def _find_separator(self, has_system: bool, has_tools: bool) -> _TurnSeparator | None:
        """Return the text around observations, or ``None`` if two turns show that the template rewrites."""
        tools = _PROBE_TOOLS if has_tools else ()
        messages = _probe(has_system)
        prompt = self.render(messages, tools, add_generation_prompt=True)
        messages += [_message("assistant", _SAID), _message("user", _SEEN)]
        second = self.render(messages, tools, add_generation_prompt=True)
        messages += [_message("assistant", _SAID_AGAIN), _message("user", _SEEN_AGAIN)]
        third = self.render(messages, tools, add_generation_prompt=True)

        head, _, tail = second.partition(_SAID)
        before, _, after = tail.partition(_SEEN)
        next_head, _, next_tail = third.partition(_SAID_AGAIN)
        # A space between the generation prompt and the reply is the model's to sample, or not.
        same_past = head.rstrip() == prompt.rstrip() and next_head.rstrip() == second.rstrip()
        same_separator = next_tail == before + _SEEN_AGAIN + after and before.startswith(self._end_text)
        if not (same_past and same_separator):
            return None
        return _TurnSeparator(head, self._end_text, before.removeprefix(self._end_text), after)

    def _writes_reply_verbatim(self, has_system: bool, has_tools: bool, reply: str) -> bool:
        """Whether the template writes this reply into the past as it is, apart from space around it."""
        said = self._render_two_turns(has_system, has_tools, reply, _SEEN)
        found = self._separator(has_system, has_tools)
        assert found is not None
        written = _between(said, found.head, found.end + found.before + _SEEN + found.after)
        return written is not None and written.strip() == reply.strip()

    def _rendered_observation(self, has_system: bool, has_tools: bool, observation: str) -> str | None:
        """Return an observation as rendered; ``None`` if the template changes more than space around it."""
        seen = self._render_two_turns(has_system, has_tools, _SAID, observation)
        found = self._separator(has_system, has_tools)
        assert found is not None
        written = _between(seen, found.head + _SAID + found.end + found.before, found.after)
        return written if written is not None and written.strip() == observation.strip() else None

    def _render_two_turns(self, has_system: bool, has_tools: bool, reply: str, observation: str) -> str:
        messages = [*_probe(has_system), _message("assistant", reply), _message("user", observation)]
        return self.render(messages, _PROBE_TOOLS if has_tools else (), add_generation_prompt=True)


_PROBE = "any_probe"
_PROBE_TOOLS: Tools = (
    {
        "type": "function",
        "function": {
            "name": _PROBE,
            "description": "Stands for any tool.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
)


def _probe(has_system: bool) -> list[Message]:
    return [*([_message("system", "standing words")] if has_system else []), _message("user", _ASK)]


def _between(text: str, start: str, end: str) -> str | None:
    """Return the text between a start and an end, or ``None`` if it does not have both."""
    fits = len(start) + len(end) <= len(text) and text.startswith(start) and text.endswith(end)
    return text[len(start) : len(text) - len(end)] if fits else None


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _folded(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move the system message to the head of the first user message."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    first = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens that a new observation adds to a context."""

    token_ids: list[int]
    restarted: bool
    """Whether they are the whole context and replace what was read before."""


@dataclass(eq=False, slots=True)
class TokenHistoryBuilder:
    """Builds the token histories of one conversation: what was read and what was sampled, turn after turn.

    The first observation is rendered with the chat template. Later ones are appended as the template's text
    between two turns, replies as they were sampled. If the template rewrites the past, a new history begins.

    Attributes:
        spans: The present context.
        closed: Finished contexts.
        turn: Replies so far.
        ended: Whether the last reply holds the template's end-of-turn token, so that it need not be added.
        rewritten: Whether the context holds turns that the template rewrote, and may rewrite again.
    """

    spans: list[Span] = field(default_factory=list)
    closed: list[TokenHistory] = field(default_factory=list)
    turn: int = 0
    ended: bool = True
    rewritten: bool = False

    @property
    def context(self) -> tuple[int, ...]:
        """The tokens of the present context."""
        return tuple(token for span in self.spans for token in span.token_ids)

    @property
    def length(self) -> int:
        """The number of tokens of the present context."""
        return sum(len(span.token_ids) for span in self.spans)

    def append_observation(
        self,
        chat: ChatFormat,
        messages: Sequence[Message],
        tools: Tools,
        *,
        longest: int | None,
        version: int,
    ) -> Reading | None:
        """Append the newest observation to the context.

        Args:
            chat: How messages become tokens.
            messages: The conversation, its last message an observation.
            tools: Tool schemas in OpenAI's format.
            longest: Most tokens the context may have, for a reply to fit behind it; ``None`` for any.
            version: Version of the weights that read it.

        Returns:
            What was appended; ``None``, with nothing changed, if it would not fit.
        """
        more = None
        if self.spans:
            more = chat.continuation(messages, tools, appended_only=not self.rewritten)
        if more is None:
            tokens = chat.prompt(messages, tools)
        else:
            tokens = more if self.ended else [chat.end_of_turn, *more]
        before = 0 if more is None else self.length
        if longest is not None and before + len(tokens) > longest:
            return None
        if more is None:
            self.close()
            self.rewritten = self.turn > 0
        self.spans.append(Span(tuple(tokens), policy_version=version))
        return Reading(tokens, restarted=more is None)

    def append_reply(
        self,
        chat: ChatFormat,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        stopped: bool,
        version: int,
    ) -> str:
        """Append a reply as it was sampled, and return its text.

        Args:
            chat: How tokens become text.
            token_ids: What was sampled.
            logprobs: The log-prob of each token under the distribution it was sampled from.
            stopped: Whether the last token ends the turn and so is not part of the text.
            version: Version of the weights that sampled it.
        """
        self.spans.append(Span(tuple(token_ids), self.turn, tuple(logprobs), version))
        self.turn += 1
        # Another stop token than the template's leaves the turn open in the context.
        self.ended = token_ids[-1] == chat.end_of_turn
        return chat.decode(token_ids[:-1] if stopped else token_ids)

    def finish(self) -> tuple[TokenHistory, ...]:
        """Close the context and return all histories in which anything was sampled."""
        self.close()
        return tuple(self.closed)

    def close(self) -> None:
        """End the context: the next observation begins a new history."""
        if any(span.turn is not None for span in self.spans):
            self.closed.append(TokenHistory(tuple(self.spans)))
        self.spans = []


def context_limit(model: object) -> int | None:
    """Return the number of positions of a Hugging Face model, if its configuration says so.

    It is smaller where the model's rotary frequencies change, see :mod:`art_trainer.models.rotary`.
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        return None
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    limits = [int(one) for one in (limit, frequency_limit(model)) if one is not None]
    return min(limits, default=None)


def stop_token_ids_of_turn(
    chat: ChatFormat, tokenizer: PreTrainedTokenizerBase, model: object, more: Sequence[int] = ()
) -> frozenset[int]:
    """Return all tokens that end a turn: the template's, the tokenizer's, the model's own and ``more``."""
    stops = {chat.end_of_turn, *more}
    configured: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    for found in (tokenizer.eos_token_id, configured):
        if found is not None:
            stops.update(found if isinstance(found, list) else [found])
    return frozenset(stops)


def apply_history_window(
    messages: Sequence[Mapping[str, Any]], window: int | None
) -> Sequence[Mapping[str, Any]]:
    """Return the system message and the newest turns of a conversation that ends with an observation."""
    newest = len(messages) if window is None else 2 * window - 1
    if len(messages) <= newest:
        return messages
    system = messages[:1] if messages[0]["role"] == "system" else []
    return [*system, *messages[max(len(system), len(messages) - newest) :]]
