"""Secrets out of words: whatever a sink says about a fault goes through here first.

A server may echo the key it refused, and a library may put an address with a password into its exception.
Masked are the values of environment variables that hold secrets, the secrets that a sink was given, and what
looks like a secret: an ``Authorization`` header, a bearer token, a password in an address, a key with the
prefix of a known service.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, unquote

MASK = "***"

SECRET_VARIABLES = frozenset(
    {
        "HF_TOKEN",
        "LANGFUSE_PUBLIC_KEY",
        "LANGFUSE_SECRET_KEY",
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_TOKEN",
        "OPENAI_API_KEY",
        "OPENPIPE_API_KEY",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "WANDB_API_KEY",
    }
)
"""Environment variables whose values are never shown. Langfuse's public key is half of a password."""

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


class Redactor:
    """Masks secrets in words; its own ``repr`` shows none.

    Args:
        secrets: Values to mask wherever they stand, beside those in the environment.
        pairs: User names and passwords as HTTP's basic authentication joins and encodes them.
        environ: Where the variables are looked up, at each call; by default the process's environment.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        *,
        pairs: Iterable[tuple[str, str]] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        pairs = tuple(pairs)
        given = [*secrets, *(part for pair in pairs for part in pair)]
        given += [base64.b64encode(f"{user}:{word}".encode()).decode() for user, word in pairs]
        self._given = frozenset(form for secret in given for form in _forms(secret))
        self._environ = os.environ if environ is None else environ

    def __call__(self, words: object) -> str:
        """Return ``str(words)`` with every secret in it replaced by ``***``."""
        text = str(words)
        # A secret may be part of a longer one: the longest go first.
        for secret in sorted(self._given | set(self._from_environment()), key=len, reverse=True):
            text = text.replace(secret, MASK)
        for shape in _SHAPES:
            text = shape.sub(lambda found: f"{found['keep']}{MASK}", text)
        return text

    def _from_environment(self) -> Iterator[str]:
        for name, value in self._environ.items():
            if is_secret_name(name):
                yield from _forms(value)
                if name.endswith("_HEADERS"):
                    yield from _header_values(value)


def is_secret_name(name: str) -> bool:
    """Whether an environment variable or setting of this name holds a secret."""
    return name.upper() in SECRET_VARIABLES or _SECRET_NAME.search(name.upper()) is not None


def redact(words: object, secrets: Iterable[str] = ()) -> str:
    """Mask secrets in words once; see :class:`Redactor`."""
    return Redactor(secrets)(words)


def _forms(secret: str) -> Iterator[str]:
    """A secret as it is, as an address writes it and as JSON does; nothing for one too short to be one."""
    if len(secret.strip()) >= _SHORTEST:
        yield from {secret.strip(), quote(secret.strip(), safe=""), json.dumps(secret.strip())[1:-1]}


def _header_values(headers: str) -> Iterator[str]:
    """The values in ``name=value,name=value``, percent-encoded as OpenTelemetry's variable has them."""
    for header in headers.split(","):
        yield from _forms(unquote(header.partition("=")[2]))
