"""A tokenizer that reads free text as a tool call, for models and environments without tool calls.

TRL gives a turn to an environment only if the tokenizer's ``response_template`` reads a tool call from it.
The template made here reads every turn as ``act(text=…)``, the empty one included; only space around it is
lost.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from jinja2 import TemplateError

from art_trainer.errors import ConfigError
from art_trainer.models.chat_template import ChatFormat

TOOL = "act"
"""The one tool that free text is a call of; its argument is ``text``."""

_NAME, _KEY, _VALUE, _ANSWER = "name-of-a-tool", "an-argument", "its-value", "what-came-back"

_PLAIN_CALLS = """\
{%- set plain = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- if message['role'] == 'tool' -%}
{%- set plain.messages = plain.messages + [{'role': 'user', 'content': message['content']}] -%}
{%- elif message.get('tool_calls') -%}
{%- set call = message['tool_calls'][0]['function'] -%}
{%- set text = call['arguments'].get('text', '') if call['name'] == 'act' else call | tojson -%}
{%- set plain.messages = plain.messages + [{'role': 'assistant', 'content': text}] -%}
{%- else -%}
{%- set plain.messages = plain.messages + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = plain.messages -%}
"""
"""Put before a template without tool calls: a call of ``act`` becomes an assistant message with its text, any
other call one with its JSON, and a tool's answer becomes a user message."""


def free_text(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that reads each turn as a call of ``act``.

    For ``GRPOTrainer(environment_factory=environment_factory(…, free_text=True), processing_class=…)``. If
    the chat template cannot write tool calls and their answers, the copy's template writes them as assistant
    and user messages.

    Raises:
        ConfigError: If there is no chat template, or it writes nothing before a reply.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template, so conversations cannot be rendered: use an "
            "instruction-tuned model's tokenizer, or set tokenizer.chat_template"
        )
    adapted = copy.deepcopy(tokenizer)
    if not _writes_tools(adapted):
        adapted.chat_template = _PLAIN_CALLS.strip() + adapted.chat_template
    end = adapted.decode([ChatFormat(adapted).end_of_turn])
    adapted.response_template = {
        "defaults": {"role": "assistant", "content": ""},
        "start_anchor": _start_anchor(adapted),
        "fields": {
            "tool_calls": {
                # Matches before the first character, so that an empty turn is a call too.
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


def _start_anchor(tokenizer: Any) -> str:
    """Return what the template writes before a reply, encoded and decoded."""
    asked = [{"role": "user", "content": "text"}]
    texts = []
    for prompted in (False, True):
        written = tokenizer.apply_chat_template(asked, add_generation_prompt=prompted, tokenize=False)
        texts.append(tokenizer.decode(tokenizer(written, add_special_tokens=False)["input_ids"]))
    anchor = texts[1].removeprefix(texts[0]).lstrip()
    if not texts[1].startswith(texts[0]) or not anchor:
        raise ConfigError(
            "the chat template writes nothing of its own before a reply (add_generation_prompt=True changes "
            "nothing), so TRL cannot find the start of a reply: add a marker for the assistant's turn"
        )
    return str(anchor)


def _writes_tools(tokenizer: Any) -> bool:
    """Whether the template writes all parts of a tool call and its answer, as TRL requires."""
    call = {"type": "function", "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
    messages = [
        {"role": "user", "content": "text"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": _NAME, "content": _ANSWER},
    ]
    try:
        written = tokenizer.apply_chat_template(messages, tokenize=False)
    except (TemplateError, TypeError):
        return False
    return all(part in written for part in (_NAME, _KEY, _VALUE, _ANSWER))
