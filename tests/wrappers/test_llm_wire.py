"""What servers send, read with nothing taken for granted."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest

from art_gym.wrappers.judging.llm_wire import (
    Answer,
    GarbledAnswer,
    RefusedAnswer,
    read_completion,
    retry_after,
    says_too_long,
)
from tests.wrappers.judge_server import completion

NOW = 1_700_000_000.0


def test_a_completion_is_read() -> None:
    body = json.dumps(completion("héllo", usage=(7, 3))).encode()
    assert read_completion(body) == Answer("héllo", False, 7, 3)
    assert read_completion(b"\xef\xbb\xbf" + body) == Answer("héllo", False, 7, 3)
    cut = completion(None, usage=None, finish="length")
    assert read_completion(json.dumps(cut).encode()) == Answer("", True)
    assert read_completion(json.dumps(completion("\ud800")).encode()).text == "\\ud800"


@pytest.mark.parametrize("usage", [None, 3, {}, {"prompt_tokens": "many", "completion_tokens": -1}, [1]])
def test_odd_usage_is_no_usage(usage: object) -> None:
    answer = read_completion(json.dumps(completion("x") | {"usage": usage}).encode())
    assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{cut",
        b"[]",
        b"null",
        b"[" * 100_000,
        "é".encode("latin-1"),
        json.dumps(completion("x")).encode("utf-16"),
        b'{"choices": []}',
        b'{"choices": [3]}',
        b'{"choices": [{"message": "x"}]}',
        b'{"choices": [{"message": {"content": [{"type": "text"}]}}]}',
        b'{"error": {"message": "overloaded"}}',
    ],
)
def test_anything_else_is_garbled(body: bytes) -> None:
    with pytest.raises(GarbledAnswer):
        read_completion(body)


def test_a_refusal_is_told_apart() -> None:
    refusal = completion(None)
    refusal["choices"][0]["message"]["refusal"] = "I would rather not."
    with pytest.raises(RefusedAnswer, match="rather not"):
        read_completion(json.dumps(refusal).encode())
    with pytest.raises(RefusedAnswer, match="content filter"):
        read_completion(json.dumps(completion("", finish="content_filter")).encode())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW + 30).replace("-0000", "")}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "message", "code", "expected"),
    [
        (400, "This model's maximum context length is 4096 tokens.", None, True),
        (400, "nope", "context_length_exceeded", True),
        (400, "the request exceeds the available context size", None, True),
        (422, "prompt is too long: 210000 tokens > 200000 maximum", None, True),
        (413, "Payload Too Large", None, True),
        (400, "response_format is not supported", None, False),
        (401, "the key is too long", None, False),
        (500, "context length", None, False),
    ],
)
def test_too_long_is_told_from_other_refusals(
    status: int, message: str, code: str | None, expected: bool
) -> None:
    assert says_too_long(status, message, code) is expected
