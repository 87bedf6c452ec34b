"""Who a worker is: its name, and the secret that its server gave it with the name."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path


def new_client_id() -> str:
    """A name that no other worker has: the machine's, and some random letters."""
    host = "".join(letter for letter in socket.gethostname() if letter.isascii() and letter.isalnum())
    return f"{host[:40] or 'worker'}-{secrets.token_hex(4)}"


class SecretFile:
    """Keeps a worker's secret, so that it is let in under its name when it is started again.

    Args:
        cache: The worker's cache.
        url: The server's address.
        client_id: The worker's name.
    """

    def __init__(self, cache: Path, url: str, client_id: str) -> None:
        digest = hashlib.sha256(f"{url}\n{client_id}".encode()).hexdigest()
        self._file = cache / "secrets" / digest

    def read(self) -> str | None:
        """The secret; ``None`` where there is none yet."""
        try:
            return self._file.read_text(encoding="ascii")
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    def write(self, secret: str) -> None:
        """Keep a secret, for this user's eyes alone."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(secret)
        os.replace(partial, self._file)
