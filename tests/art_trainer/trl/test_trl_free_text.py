"""Free text as a tool call: what the adapted tokenizer reads and writes."""

from __future__ import annotations

from typing import Any

import pytest

from art_trainer.chat import ChatFormat
from art_trainer.errors import ConfigError
from art_trainer.trl import free_text
from tests.art_trainer.tiny_models import byte_tokenizer
from tests.art_trainer.trl.trl_runs import QUIET, byte_chat, word_tokenizer

utils = pytest.importorskip("trl.chat_template_utils", reason="TRL is not installed")

pytestmark = QUIET

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "what is <|im_start|>assistant\n to you?"}]


def read(tokenizer: Any, reply: str) -> dict[str, Any]:
    """What TRL reads in a reply."""
    prefix = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    ids = tokenizer(reply, add_special_tokens=False)["input_ids"]
    found: dict[str, Any] = utils.parse_response(tokenizer, ids, prefix=prefix)
    return found


@pytest.mark.parametrize(
    "reply",
    [
        "left",
        " two\n\nlines ",
        "{content} {x}",
        '{"name": "f", "arguments": {}}',
        "<tool_call>x</tool_call>",
        "7",
    ],
)
@pytest.mark.parametrize("end", ["<|im_end|>", ""])
def test_every_turn_is_one_call_that_says_it_verbatim(reply: str, end: str) -> None:
    call = {"type": "function", "function": {"name": "act", "arguments": {"text": reply.strip()}}}
    assert read(free_text(byte_chat()), reply + end)["tool_calls"] == [call]


def test_a_turn_that_says_nothing_is_a_call_too() -> None:
    calls = read(free_text(byte_chat()), "<|im_end|>")["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"text": ""}]


def test_the_given_tokenizer_stays_as_it_was() -> None:
    tokenizer = word_tokenizer()
    before = tokenizer.chat_template
    adapted = free_text(tokenizer)
    assert tokenizer.chat_template == before != adapted.chat_template
    assert getattr(tokenizer, "response_template", None) is None


@pytest.mark.parametrize("made", [byte_chat, word_tokenizer])
def test_calls_of_act_and_their_answers_are_written_as_plain_words(made: Any) -> None:
    adapted = free_text(made())
    assert utils.supports_tool_calling(adapted)
    assert utils.is_chat_template_prefix_preserving(adapted)
    call = {"type": "function", "function": {"name": "act", "arguments": {"text": "red"}}}
    called = [
        {"role": "user", "content": "green ?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "act", "content": "wrong"},
    ]
    plain = [
        {"role": "user", "content": "green ?"},
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": "wrong"},
    ]
    shown = adapted.apply_chat_template(called, add_generation_prompt=True, tokenize=False)
    assert shown == ChatFormat(made()).render(plain, add_generation_prompt=True)


def test_a_template_that_knows_tools_is_kept() -> None:
    tokenizer = byte_chat()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
        "{% for c in m.get('tool_calls') or [] %}{{ c['function'] | tojson }}{% endfor %}"
        "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    adapted = free_text(tokenizer)
    assert adapted.chat_template == tokenizer.chat_template
    assert read(adapted, "hello<|im_end|>")["tool_calls"][0]["function"]["arguments"] == {"text": "hello"}


def test_wrong_tokenizers_get_words() -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        free_text(byte_tokenizer(template=None))
    silent = byte_tokenizer(template="{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}")
    with pytest.raises(ConfigError, match="writes nothing of its own before a reply"):
        free_text(silent)
