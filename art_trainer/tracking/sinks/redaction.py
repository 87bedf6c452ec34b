"""Masks secrets in messages: everything a sink says about a failure goes through here.

A server may echo the key it refused, and a library may put a URL with a password into its exception. Masked
are the values of environment variables that hold secrets, the secrets that a sink was given, and what looks
like a secret: an ``Authorization`` header, a bearer token, a password in a URL, a key with the prefix of a
known service.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, unquote

MASK = "***"
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|OTLP(?:_TRACES)?_HEADERS)$"
)
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


class Redactor:
    """Masks secrets in text; its own ``repr`` shows none.

    Args:
        secrets: Values to mask wherever they occur, beside those in the environment.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._given = frozenset(form for secret in secrets for form in _forms(secret))

    def __call__(self, message: object) -> str:
        """Return ``str(message)`` with every secret in it replaced by ``***``."""
        text = str(message)
        # A secret may be part of a longer one: the longest go first.
        for secret in sorted(self._given | set(_from_environment(os.environ)), key=len, reverse=True):
            text = text.replace(secret, MASK)
        for shape in _SHAPES:
            text = shape.sub(lambda found: f"{found['keep']}{MASK}", text)
        return text


def redact(message: object) -> str:
    """Mask the secrets that are in the environment or look like one."""
    return Redactor()(message)


def is_secret_name(name: str) -> bool:
    """Whether an environment variable or setting of this name holds a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def _from_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if is_secret_name(name):
            yield from _forms(value)
            if name.endswith("_HEADERS"):  # name=value,name=value, percent-encoded
                for header in value.split(","):
                    yield from _forms(unquote(header.partition("=")[2]))


def _forms(secret: str) -> Iterator[str]:
    """A secret as it is, as a URL writes it and as JSON does; nothing if it is too short to be one."""
    if len(secret.strip()) >= _SHORTEST:
        yield from {secret.strip(), quote(secret.strip(), safe=""), json.dumps(secret.strip())[1:-1]}
