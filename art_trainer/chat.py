"""Messages to tokens, so that what a model once sampled is never tokenised again.

A context begins as the tokenizer's chat template renders it. After that only the glue between the end of a
reply and the next reply is encoded and appended. Where a template rewrites the past (it drops thinking, or
moves the tools), its rendering no longer begins with what the model saw; :meth:`ChatFormat.continuation` then
says so, and the caller starts a new token history from :meth:`ChatFormat.prompt`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from art_trainer.policy import in_window

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For tokenizers without a chat template."""

# Words no template treats specially, for finding where it puts a message's content.
_ASK, _SAID, _SEEN = "first words asked", "placeholder reply said", "next words seen"
_SAID_AGAIN, _SEEN_AGAIN = "second reply said", "last words seen"


PROMPT_DATE = "26 Jul 2024"
"""Today, to templates that name a date and take it as ``date_string`` (Llama 3.1 and 3.2): what Llama's own
fall back to. With the clock's date a run stopped and resumed a day later would read other prompts."""


@dataclass(frozen=True, slots=True)
class _Glue:
    """What a template writes around the second turn of a conversation.

    Attributes:
        head: All before the reply.
        end: What ends the reply, as far as it is the end-of-turn token.
        before: From there to the observation.
        after: From the observation to the start of the next reply.
    """

    head: str
    end: str
    before: str
    after: str


class ChatFormat:
    """A tokenizer's way of writing conversations.

    A system message that the template has no place for is put before the first user message, unless the
    tokenizer was saved with ``omit_system=True``: a model too small for instructions goes without.

    Args:
        tokenizer: With a chat template, or else with an end-of-sequence token for the plain built-in format.
        history_window: How many turns the model sees, the present one included, beside the standing
            instructions; ``None`` for what the tokenizer was saved with, or else all of them. With 1 every
            turn is a short context of its own: right where an observation says all there is to know, as a
            board does. It is saved with the tokenizer: what was trained so is played so.

    Attributes:
        tokenizer: The tokenizer to save beside the model.
        end_of_turn: The token that ends a reply.

    Raises:
        ValueError: The tokenizer has neither, its template does not write an assistant's words, or
            ``history_window`` is below 1.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, history_window: int | None = None) -> None:
        if history_window is not None and history_window < 1:
            raise ValueError(f"history_window is at least 1, got {history_window}")
        if history_window is not None:
            # A copy, since the caller's may serve other policies too.
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
        self._folds_system = not (self._omits_system or self._writes_system())
        self.end_of_turn, self._end_text = self._find_end_of_turn()
        self._last_prompt: tuple[list[Message], Tools, list[int]] | None = None
        self._glue = lru_cache(maxsize=4)(self._find_glue)
        self._keeps = lru_cache(maxsize=4096)(self._keeps_verbatim)
        self._shown = lru_cache(maxsize=4096)(self._show)
        # The attempts of a group often see the same observation.
        self._encode_again = lru_cache(maxsize=4096)(self.encode)

    def prompt(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """The whole conversation as tokens, up to where the next reply starts.

        Args:
            messages: Chat messages, the last one from the user.
            tools: Tool schemas in OpenAI's format.
        """
        messages = in_window(messages, self.history_window)
        if self._last_prompt is not None and self._last_prompt[:2] == (list(messages), tools):
            return list(self._last_prompt[2])
        token_ids = self.encode(self.render(messages, tools, add_generation_prompt=True))
        self._last_prompt = [dict(message) for message in messages], tools, token_ids
        return list(token_ids)

    def continuation(
        self, messages: Sequence[Message], tools: Tools = (), *, appended_only: bool = False
    ) -> list[int] | None:
        """The tokens between the last reply's end-of-turn token and the start of the next reply.

        Space around a reply that the template drops does not count as rewriting: the reply stays as sampled.

        Args:
            messages: The conversation, ending with a reply and the observation after it.
            tools: The same as in :meth:`prompt`.
            appended_only: Whether every earlier turn was appended by this method, none rewritten. Then only
                the newest is looked at; else the whole conversation is rendered, with and without it.

        Returns:
            The tokens to append; ``None`` where the template would rewrite what came before, or the window
            moves on, so that the conversation has to be rendered anew.
        """
        if self.history_window is not None:
            return None
        reply, observation = messages[-2], messages[-1]
        if (reply["role"], observation["role"]) != ("assistant", "user"):
            roles = [message["role"] for message in messages[-2:]]
            raise ValueError(f"a continuation follows a reply (assistant) and a user message, got {roles}")
        has_system = messages[0]["role"] == "system" and not (self._folds_system or self._omits_system)
        glue = self._glue(has_system, bool(tools))
        if glue is None or not self._keeps(has_system, bool(tools), str(reply["content"])):
            return None
        shown = self._shown(has_system, bool(tools), str(observation["content"]))
        if shown is None:
            return None
        new = glue.before + shown + glue.after
        if not appended_only:
            past = self.render(messages[:-2], tools, add_generation_prompt=True)
            now = self.render(messages, tools, add_generation_prompt=True)
            said = _between(now, past.rstrip(), glue.end + new)
            if said is None or said.strip() != str(reply["content"]).strip():
                return None
        return list(self._encode_again(new))

    def reply(self, text: str) -> list[int]:
        """A reply as a model that imitates it should sample it: its tokens and the end-of-turn token."""
        return [*self.encode(text), self.end_of_turn]

    def render(
        self, messages: Sequence[Message], tools: Tools = (), *, add_generation_prompt: bool = False
    ) -> str:
        """The conversation as the template's text."""
        rendered = self.tokenizer.apply_chat_template(
            [dict(message) for message in (_folded(messages) if self._folds_system else messages)],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=self._template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            date_string=PROMPT_DATE,
        )
        assert isinstance(rendered, str)
        return rendered

    def encode(self, text: str) -> list[int]:
        """Tokens of a piece of rendered text: special tokens as written, none added."""
        token_ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, special ones included: tool calls may be written with them."""
        text = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def _writes_system(self) -> bool:
        """Whether the template has a place for a system message; some raise, some ignore it."""
        try:
            return _SEEN in self.render([_system(_SEEN), _user(_ASK)])
        except jinja2.TemplateError:
            return False

    def _find_end_of_turn(self) -> tuple[int, str]:
        """The token after a reply and its text; the end-of-sequence token where a template writes none."""
        rendered = self.render([_user(_ASK), _assistant(_SAID)])
        _, found, tail = rendered.partition(_SAID)
        if not found:
            raise ValueError("the chat template does not write an assistant message's content")
        token_ids = self.encode(tail)
        if token_ids:
            return token_ids[0], self.decode(token_ids[:1])
        if self.tokenizer.eos_token_id is None:
            raise ValueError("the chat template writes nothing after a reply and there is no eos_token")
        return int(self.tokenizer.eos_token_id), ""

    def _find_glue(self, has_system: bool, has_tools: bool) -> _Glue | None:
        """What stands around observations, or ``None`` where two turns show that the template rewrites."""
        tools = _PROBE_TOOLS if has_tools else ()
        messages = _probe(has_system)
        prompt = self.render(messages, tools, add_generation_prompt=True)
        messages += [_assistant(_SAID), _user(_SEEN)]
        second = self.render(messages, tools, add_generation_prompt=True)
        messages += [_assistant(_SAID_AGAIN), _user(_SEEN_AGAIN)]
        third = self.render(messages, tools, add_generation_prompt=True)

        head, _, tail = second.partition(_SAID)
        before, _, after = tail.partition(_SEEN)
        next_head, _, next_tail = third.partition(_SAID_AGAIN)
        # A space between the generation prompt and the reply is the model's to sample, or not.
        same_past = head.rstrip() == prompt.rstrip() and next_head.rstrip() == second.rstrip()
        same_glue = next_tail == before + _SEEN_AGAIN + after and before.startswith(self._end_text)
        if not (same_past and same_glue):
            return None
        return _Glue(head, self._end_text, before.removeprefix(self._end_text), after)

    def _keeps_verbatim(self, has_system: bool, has_tools: bool, reply: str) -> bool:
        """Whether the template writes this reply into the past as it is, apart from space around it."""
        said = self._probed(has_system, has_tools, reply, _SEEN)
        glue = self._glue(has_system, has_tools)
        assert glue is not None
        written = _between(said, glue.head, glue.end + glue.before + _SEEN + glue.after)
        return written is not None and written.strip() == reply.strip()

    def _show(self, has_system: bool, has_tools: bool, observation: str) -> str | None:
        """An observation as the template writes it; ``None`` where that changes more than space around it."""
        seen = self._probed(has_system, has_tools, _SAID, observation)
        glue = self._glue(has_system, has_tools)
        assert glue is not None
        written = _between(seen, glue.head + _SAID + glue.end + glue.before, glue.after)
        return written if written is not None and written.strip() == observation.strip() else None

    def _probed(self, has_system: bool, has_tools: bool, reply: str, observation: str) -> str:
        """A conversation of two turns whose second is the one to look at."""
        messages = [*_probe(has_system), _assistant(reply), _user(observation)]
        return self.render(messages, _PROBE_TOOLS if has_tools else (), add_generation_prompt=True)


_PROBE_TOOLS: Tools = (
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "Stands for any tool.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
)


def _probe(has_system: bool) -> list[Message]:
    return [*([_system("standing words")] if has_system else []), _user(_ASK)]


def _between(text: str, start: str, end: str) -> str | None:
    """What stands between a start and an end, or ``None`` where the text has not both."""
    fits = len(start) + len(end) <= len(text) and text.startswith(start) and text.endswith(end)
    return text[len(start) : len(text) - len(end)] if fits else None


def _system(content: str) -> Message:
    return {"role": "system", "content": content}


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _folded(messages: Sequence[Message]) -> Sequence[Message]:
    """The standing instructions as the head of the first user message."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    first = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]
