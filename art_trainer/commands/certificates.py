"""TLS of the commands that listen: a certificate from two files, and a word where there is none."""

from __future__ import annotations

import ssl
from pathlib import Path

from art_trainer.errors import ConfigError
from art_trainer.web.hosts import in_url, is_loopback
from art_trainer.web.thread import Certificate


def certificate_of(certificate: Path | None, key: Path | None) -> Certificate | None:
    """A server's certificate, where both of its files are given.

    Raises:
        ConfigError: Where only one is, or where they are no certificate and its key.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together: give both")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError is one, too
        raise ConfigError(f"--tls-cert {certificate} and --tls-key {key} are of no use: {error}") from error
    return Certificate(certificate, key)


def in_the_open(host: str, certificate: Certificate | None) -> str | None:
    """What to say where others can listen on the way to a server; ``None`` where they cannot."""
    if certificate is not None or is_loopback(host):
        return None
    return (
        f"Nothing is encrypted on the way to {in_url(host)}: who listens there reads the token. "
        "Give --tls-cert and --tls-key, or put a proxy with TLS in front."
    )
