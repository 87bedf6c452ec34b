"""Environment variables and ``.env``: keys and addresses of services, by their usual names.

Nothing is read at import: a command reads them as it starts. The environment wins over the file.
"""

from __future__ import annotations

import difflib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dotenv.parser import parse_stream

from art_trainer.errors import ConfigError
from art_trainer.tracking.loggers.redaction import redact


class EnvVar(NamedTuple):
    """A known environment variable."""

    name: str
    meaning: str
    default: str | None = None
    secret: bool = False


ENV_VARS = (
    EnvVar("OPENAI_API_KEY", "key of judges and policies behind an OpenAI-compatible server", secret=True),
    EnvVar("WANDB_API_KEY", "key of Weights & Biases; without one its logger stays offline", secret=True),
    EnvVar("WANDB_BASE_URL", "address of a Weights & Biases server of your own"),
    EnvVar("WANDB_ENTITY", "whose project it is at Weights & Biases"),
    EnvVar("WANDB_MODE", "online, offline or shared"),
    EnvVar("WANDB_PROJECT", "project at Weights & Biases", "art-gym"),
    EnvVar("VLLM_API_KEY", "key of a vLLM server", secret=True),
    EnvVar("ART_SERVER_PORT", "port of art-trainer serve", "8270"),
    EnvVar("ART_SERVER_TOKEN", "token between art-trainer serve and its workers", secret=True),
    EnvVar("ART_CLIENT_WORKERS", "processes of art-trainer worker", "1"),
)
_BY_NAME: Mapping[str, EnvVar] = {known.name: known for known in ENV_VARS}


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that has a value.

    Attributes:
        known: The variable.
        value: Its value.
        source: ``"default"``, ``"environment"``, or a file's name and line.
    """

    known: EnvVar
    value: str = field(repr=False)
    source: str

    @property
    def shown(self) -> str:
        """The value for a reader; secrets and passwords are masked."""
        return "********" if self.known.secret else redact(self.value)


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """All variables that have a value.

    Attributes:
        settings: By name.
        unknown: Names in the file that are close to a known one, and a message about each.
    """

    settings: Mapping[str, Setting]
    unknown: Mapping[str, str]

    @property
    def values(self) -> dict[str, str]:
        """The values by name."""
        return {name: setting.value for name, setting in self.settings.items()}

    def integer(self, name: str, most: int = 2**63) -> int:
        """Return a value as a whole number from 1 to ``most``.

        Raises:
            ConfigError: If it is not; the message has where it was set.
        """
        setting = self.settings[name]
        if not (setting.value.isdecimal() and 1 <= int(setting.value) <= most):
            upwards = f" to {most}" if most < 2**63 else ""
            raise ConfigError(
                f"{name} from {setting.source} is {setting.value!r}: set a whole number from 1{upwards}"
            )
        return int(setting.value)


def load_env_vars(
    environ: Mapping[str, str] | None = None, file: Path | None = Path(".env")
) -> ServiceSettings:
    """Read the environment and a file.

    Args:
        environ: The environment; by default the process's own.
        file: A file of ``NAME=value`` lines, which need not exist; ``None``: none.

    Raises:
        ConfigError: If a line of the file is malformed, or it cannot be read.
    """
    environ = os.environ if environ is None else environ
    lines = _read_file(file) if file is not None else {}
    found = {}
    for known in ENV_VARS:
        given = (environ.get(known.name), "environment")
        for value, source in (given, lines.get(known.name, ("", "")), (known.default, "default")):
            if value:
                found[known.name] = Setting(known, value, source)
                break
    unknown = {}
    for name, (_, place) in lines.items():
        if name not in _BY_NAME and (near := difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.85)):
            unknown[name] = f"{place}: no setting `{name}`; did you mean `{near[0]}`?"
    return ServiceSettings(found, unknown)


def env_var(name: str) -> str | None:
    """Return the value of one variable, from the environment or ``.env``; raises as :func:`load_env_vars`."""
    return load_env_vars().values.get(name)


def _read_file(file: Path) -> dict[str, tuple[str, str]]:
    """Return a file's values and where each is; the last of a name counts."""
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    found = {}
    for binding in parse_stream(io.StringIO(text)):
        place = f"{file.name} line {binding.original.line}"
        if binding.error:
            # The line itself may hold a secret.
            raise ConfigError(f"{place} is not NAME=value")
        if binding.key is not None:
            found[binding.key] = (binding.value or "", place)
    return found
