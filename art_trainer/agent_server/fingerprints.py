"""Recognises messages when they come back.

Clients send a conversation back as they please: content as text or as a list of parts, ``null`` for empty
content, a tool call's arguments with other white space or other order of keys. A :func:`fingerprint` is the
same for all of these, and another for anything that means something else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from art_trainer.serving.messages import ChatMessage


def fingerprint(message: ChatMessage) -> str:
    """What two ways of writing the same message have in common.

    A tool call's id is left out, since a client may make its own, and space around an assistant's words,
    since many strip it.
    """
    if message.role == "assistant":
        calls = [[call.name, _canonical_arguments(call.arguments)] for call in message.calls]
        return _canonical(["assistant", message.content.strip(), calls])
    return _canonical([message.role, message.content, message.name])


def chain(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """A digest of each beginning of a conversation, from the empty one to the whole.

    Args:
        messages: The conversation.
        tools: The tools that the model is shown with it.
    """
    digests = [hashlib.sha256(_canonical(list(tools)).encode()).digest()]
    for message in messages:
        digests.append(extended(digests[-1], message))
    return digests


def extended(digest: bytes, message: ChatMessage) -> bytes:
    """The digest of a conversation with one more message."""
    return hashlib.sha256(digest + fingerprint(message).encode()).digest()


def _canonical_arguments(arguments: str) -> str:
    try:
        return _canonical(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):  # also for a number of more digits than Python reads
        return arguments


def _canonical(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
