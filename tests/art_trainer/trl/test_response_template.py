"""Free text as a tool call: what the adapted tokenizer reads and writes."""

from __future__ import annotations

from typing import Any

import pytest

from art_trainer.errors import ConfigError
from art_trainer.models.chat_template import ChatFormat
from art_trainer.trl import free_text
from tests.art_trainer.tiny_models import byte_tokenizer
from tests.art_trainer.trl.trl_runs import QUIET, TOOLS_TEMPLATE, byte_chat, word_tokenizer

utils = pytest.importorskip("trl.chat_template_utils", reason="TRL is not installed")

pytestmark = QUIET

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "what is <|im_start|>assistant\n to you?"}]


def read(tokenizer: Any, reply: str) -> dict[str, Any]:
    """What TRL reads in a reply."""
    prefix = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    ids = tokenizer(reply, add_special_tokens=False)["input_ids"]
    return utils.parse_response(tokenizer, ids, prefix=prefix)


@pytest.mark.parametrize(
    "reply", ["left", " two\n\nlines ", '{content} {"name": "f"}', "<tool_call>x</tool_call>", "7", ""]
)
def test_every_turn_is_one_call_with_its_text(reply: str) -> None:
    call = {"type": "function", "function": {"name": "act", "arguments": {"text": reply.strip()}}}
    for end in ("<|im_end|>", "") if reply else ("<|im_end|>",):  # TRL never parses nothing
        assert read(free_text(byte_chat()), reply + end)["tool_calls"] == [call]


@pytest.mark.parametrize("made", [byte_chat, word_tokenizer])
def test_calls_of_act_and_their_answers_are_written_as_plain_words(made: Any) -> None:
    tokenizer = made()
    before = tokenizer.chat_template
    adapted = free_text(tokenizer)
    assert tokenizer.chat_template == before != adapted.chat_template
    assert getattr(tokenizer, "response_template", None) is None
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
    tokenizer.chat_template = TOOLS_TEMPLATE
    adapted = free_text(tokenizer)
    assert adapted.chat_template == tokenizer.chat_template
    assert read(adapted, "hello<|im_end|>")["tool_calls"][0]["function"]["arguments"] == {"text": "hello"}


def test_tokenizers_that_cannot_mark_a_reply_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        free_text(byte_tokenizer(template=None))
    silent = byte_tokenizer(template="{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}")
    with pytest.raises(ConfigError, match="writes nothing of its own before a reply"):
        free_text(silent)
