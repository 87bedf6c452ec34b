"""Which servers are begun at all: none that strangers could use."""

from __future__ import annotations

from collections.abc import Iterable

from art_trainer.errors import ConfigError
from art_trainer.web.hosts import LOOPBACK, is_loopback

_SHORTEST_TOKEN = 16


def check_access(host: str, token: str | None, allowed_hosts: Iterable[str] = ()) -> None:
    """Refuse a server that strangers could use.

    Args:
        host: The address that it listens on.
        token: What everybody has to bring.
        allowed_hosts: Other names that it goes by; who uses one comes through a proxy, or from elsewhere.

    Raises:
        ConfigError: For an address or a name that others reach, without a token; for a token that can be
            guessed.
    """
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host is {host!r}, which others reach, and there is no token: set ART_SERVER_TOKEN, or give "
            "--token-file, or listen on 127.0.0.1"
        )
    foreign = [name for name in allowed_hosts if name.lower() not in LOOPBACK and not is_loopback(name)]
    if token is None and foreign:
        raise ConfigError(
            f"{foreign[0]!r} is allowed as a name of this server, so others reach it, as through a proxy, "
            "and there is no token: set ART_SERVER_TOKEN, or give --token-file, or allow no other name"
        )
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"the token has {len(token)} characters: take {_SHORTEST_TOKEN} or more, of ASCII, in one line, "
            'such as those of `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )
    if token is not None and " " in token:
        raise ConfigError("the token holds a space: take letters and digits")
