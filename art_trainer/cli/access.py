"""Access token and TLS certificate of the commands that listen on the network or connect to a server."""

from __future__ import annotations

import ssl
from pathlib import Path

import typer

from art_trainer.errors import ConfigError
from art_trainer.serving.http.middleware import is_loopback, url_host
from art_trainer.serving.http.server import Certificate
from art_trainer.tracking.env_vars import env_var

TOKEN_VARIABLE = "ART_SERVER_TOKEN"


def read_token(file: Path | None) -> str | None:
    """The bearer token; ``None`` if there is none.

    Args:
        file: Holds it; ``None``: the setting ``ART_SERVER_TOKEN`` is the token. No flag takes the token
            itself, since other users of a machine can see arguments.

    Raises:
        ConfigError: If the file is empty or cannot be read.
    """
    if file is None:
        return env_var(TOKEN_VARIABLE)
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: {file} cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"--token-file: {file} is empty")
    return token


def read_certificate(certificate: Path | None, key: Path | None) -> Certificate | None:
    """A server's certificate, if both of its files are given; a ConfigError if they cannot be used."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together: give both")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError is one, too
        raise ConfigError(f"--tls-cert {certificate} and --tls-key {key} cannot be used: {error}") from error
    return Certificate(certificate, key)


def warn_if_unencrypted(host: str, certificate: Certificate | None) -> None:
    """Print a warning if others on the network can read the token."""
    if certificate is None and not is_loopback(host):
        typer.echo(
            f"Connections to {url_host(host)} are not encrypted: others on the network can read the token. "
            "Give --tls-cert and --tls-key, or put a proxy with TLS in front."
        )
