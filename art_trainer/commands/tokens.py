"""The secret between a server and who may use it: in a file or in the environment, never in an argument."""

from __future__ import annotations

import os
from pathlib import Path

from art_trainer.errors import ConfigError

TOKEN_VARIABLE = "ART_SERVER_TOKEN"


def read_token(file: Path | None) -> str | None:
    """The bearer token.

    Args:
        file: Holds it; ``None``: the environment's ``ART_SERVER_TOKEN`` is the token.

    Returns:
        ``None`` where there is none.

    Raises:
        ConfigError: Where the file is empty or cannot be read.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: {file} cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"--token-file: {file} is empty")
    return token
