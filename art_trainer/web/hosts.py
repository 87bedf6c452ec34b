"""Addresses to listen on, and the names a client may call them by."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""What this machine calls itself."""
WILDCARDS = ("", "0.0.0.0", "::")
"""Every address of this machine."""


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def in_url(host: str) -> str:
    """An address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


class HostNames:
    """The names a server goes by; a request under another was made to point here by somebody else's DNS.

    Args:
        host: The address the server listens on. Loopback goes by all its names; a server that listens on
            every address goes by any address, since rebinding a name to it needs a name.
        more: Other names, without ports.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        self._any_address = host in WILDCARDS
        own = (*LOOPBACK, socket.gethostname()) if self._any_address else (in_url(host),)
        if is_loopback(host):
            own = (*LOOPBACK, in_url(host))
        self._names = frozenset(name.lower() for name in (*own, *more))

    def include(self, header: str) -> bool:
        """Whether a request's ``Host`` header is one of the names, with any port."""
        name = _without_port(header.lower())
        if name in self._names:
            return True
        return self._any_address and _is_address(name)


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        return True
    return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
