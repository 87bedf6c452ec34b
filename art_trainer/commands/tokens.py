"""The secret between a server and who may use it: in a file or in a setting, never in an argument."""

from __future__ import annotations

from pathlib import Path

from art_trainer.errors import ConfigError
from art_trainer.monitoring.settings import value_of

TOKEN_VARIABLE = "ART_SERVER_TOKEN"


def read_token(file: Path | None) -> str | None:
    """The bearer token.

    Args:
        file: Holds it; ``None``: the setting ``ART_SERVER_TOKEN`` is the token.

    Returns:
        ``None`` where there is none.

    Raises:
        ConfigError: Where the file is empty or cannot be read.
    """
    if file is None:
        return value_of(TOKEN_VARIABLE)
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: {file} cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"--token-file: {file} is empty")
    return token
