"""Masks secrets in messages: everything that is said about a failure of a logger goes through here.

A server may echo the key it refused, and a library may put a URL with a password into its exception. Masked
are the values of environment variables that hold secrets, and what looks like a secret: an ``Authorization``
header, a bearer token, a password in a URL, a key with the prefix of a known service.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

MASK = "***"
_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_SHORTEST = 6  # a shorter value would mask ordinary words
_OPENING = r"[\"']?\s*[:=]\s*[\"']?"
_SHAPES = (
    re.compile(rf"(?i)(?P<keep>\b(?:proxy-)?authorization{_OPENING})[^\s\"',;]+(?: [^\s\"',;]+)?"),
    # A digit, a capital or an equals sign tells a token from the word after "basic" in a sentence.
    re.compile(r"(?P<keep>\b(?i:bearer|basic)(?:\s|%20)+)(?=[\w.~+/%-]*[\dA-Z=])[\w.~+/=%-]{6,}"),
    re.compile(r"(?i)(?P<keep>\b[a-z][a-z0-9+.-]{0,30}://)[^\s/@:]{0,200}:[^\s/@]{1,200}(?=@)"),
    re.compile(r"(?P<keep>)\b(?:sk|pk|opk|hf|ghp|xoxb)[-_][\w-]{8,}"),
    re.compile(rf"(?i)(?P<keep>\b(?:api[-_]?key|access[-_]?token|secret|password){_OPENING})[^\s\"',;&]+"),
)


def redact(message: object) -> str:
    """Return ``str(message)`` with every secret in it replaced by ``***``."""
    text = str(message)
    # A secret may be part of a longer one: the longest go first.
    for secret in sorted(set(_secrets(os.environ)), key=len, reverse=True):
        text = text.replace(secret, MASK)
    for shape in _SHAPES:
        text = shape.sub(lambda found: f"{found['keep']}{MASK}", text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether an environment variable or setting of this name holds a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Copy settings, however deep, without those whose names say that they are secret."""
    return {
        name: without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if not is_secret_name(str(name))
    }


def _secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Each secret as it is, as a URL writes it and as JSON does; none that is too short to be one."""
    for name, value in environ.items():
        if is_secret_name(name) and len(secret := value.strip()) >= _SHORTEST:
            yield from (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])
