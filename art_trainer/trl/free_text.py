"""Free text as a tool call: for models that were never taught to call tools in JSON.

TRL hands a turn to an environment only where its tokenizer's ``response_template`` reads a tool call from it.
The one made here reads every turn as ``act(text=…)``, whatever it says, the empty one included; only space
around it is lost.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from jinja2 import TemplateError

from art_trainer.chat import ChatFormat
from art_trainer.errors import ConfigError

TOOL = "act"
"""The one tool that free text is a call of; its argument is ``text``."""

_NAME, _KEY, _VALUE, _ANSWER = "name-of-a-tool", "an-argument", "its-value", "what-came-back"

# Put before a template that knows replies and users only: a call of `act` was what its text says, any other
# is written as JSON, and what a tool answers is what a user says.
_PLAIN_WORDS = (
    "{%- set plain = namespace(messages=[]) -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'tool' -%}"
    "{%- set plain.messages = plain.messages + [{'role': 'user', 'content': message['content']}] -%}"
    "{%- elif message.get('tool_calls') -%}"
    "{%- set call = message['tool_calls'][0]['function'] -%}"
    "{%- set said = call['arguments'].get('text', '') if call['name'] == '"
    + TOOL
    + "' else call | tojson -%}"
    "{%- set plain.messages = plain.messages + [{'role': 'assistant', 'content': said}] -%}"
    "{%- else -%}"
    "{%- set plain.messages = plain.messages + [message] -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- set messages = plain.messages -%}"
)


def free_text(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that reads each turn as a call of ``act``.

    For ``GRPOTrainer(environment_factory=environment_factory(…, free_text=True), processing_class=…)``. Where
    the chat template cannot write tool calls and their answers, the copy's template writes them as plain
    replies and users' words.

    Args:
        tokenizer: With a chat template that writes something before each reply.

    Raises:
        ConfigError: Without a chat template, or where nothing tells a reply's start.
    """
    require_chat_template(tokenizer)
    adapted = copy.deepcopy(tokenizer)
    if not _writes_tools(adapted):
        adapted.chat_template = _PLAIN_WORDS + adapted.chat_template
    end = adapted.decode([ChatFormat(adapted).end_of_turn])
    adapted.response_template = {
        "defaults": {"role": "assistant", "content": ""},
        "start_anchor": _start_anchor(adapted),
        "fields": {
            "tool_calls": {
                # Matches before the first character, so that a turn that says nothing is a call too.
                "open_pattern": r"\A",
                "close_pattern": re.escape(end) + r"\s*",
                "content": "text",
                "repeats": True,
                "transform": {
                    "type": "function",
                    "function": {"name": TOOL, "arguments": {"text": "{content}"}},
                },
            }
        },
    }
    return adapted


def require_chat_template(tokenizer: Any) -> None:
    """Refuse a tokenizer that has no way to write a conversation.

    Raises:
        ConfigError: Without a chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template, so no conversation can be written: take an "
            "instruction-tuned model's tokenizer, or set tokenizer.chat_template"
        )


def _start_anchor(tokenizer: Any) -> str:
    """What the template writes before a reply, as decoding gives it back."""
    asked = [{"role": "user", "content": "words"}]
    texts = []
    for prompted in (False, True):
        written = tokenizer.apply_chat_template(asked, add_generation_prompt=prompted, tokenize=False)
        texts.append(tokenizer.decode(tokenizer(written, add_special_tokens=False)["input_ids"]))
    anchor = texts[1].removeprefix(texts[0]).lstrip()
    if not texts[1].startswith(texts[0]) or not anchor:
        raise ConfigError(
            "the chat template writes nothing of its own before a reply (add_generation_prompt=True changes "
            "nothing), so TRL cannot find where a reply starts: give it a mark for the assistant's turn"
        )
    return str(anchor)


def _writes_tools(tokenizer: Any) -> bool:
    """Whether the template writes a tool's call and its answer, all parts of them, as TRL wants."""
    call = {"type": "function", "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
    messages = [
        {"role": "user", "content": "words"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": _NAME, "content": _ANSWER},
    ]
    try:
        written = tokenizer.apply_chat_template(messages, tokenize=False)
    except (TemplateError, TypeError):
        return False
    return all(part in written for part in (_NAME, _KEY, _VALUE, _ANSWER))
