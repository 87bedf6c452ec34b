"""Which servers are begun at all: none that strangers could use."""

from __future__ import annotations

from art_trainer.errors import ConfigError
from art_trainer.web.hosts import is_loopback

_SHORTEST_TOKEN = 16


def check_access(host: str, token: str | None) -> None:
    """Refuse a server that strangers could use.

    Raises:
        ConfigError: For an address that others reach, without a token; for a token that can be guessed.
    """
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host is {host!r}, which others reach, and there is no token: set ART_SERVER_TOKEN, or give "
            "--token-file, or listen on 127.0.0.1"
        )
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"the token has {len(token)} characters: take {_SHORTEST_TOKEN} or more, of ASCII, in one line, "
            'such as those of `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )
    if token is not None and " " in token:
        raise ConfigError("the token holds a space: take letters and digits")
