"""Keys and addresses of services, from the environment or a ``.env`` file, by their usual names.

Nothing is read when this is imported: a command reads them as it starts. The environment wins over the file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv.parser import parse_stream

from art_trainer.errors import ConfigError
from art_trainer.monitoring.redaction import redact


@dataclass(frozen=True, slots=True)
class Known:
    """A setting there is."""

    name: str
    meaning: str
    default: str | None = None
    secret: bool = False


KNOWN = (
    Known("OPENAI_API_KEY", "key of judges and policies behind an OpenAI-compatible server", secret=True),
    Known("WANDB_API_KEY", "key of Weights & Biases; without one its sink stays offline", secret=True),
    Known("WANDB_BASE_URL", "address of a Weights & Biases server of your own"),
    Known("WANDB_ENTITY", "whose project it is at Weights & Biases"),
    Known("WANDB_MODE", "online, offline or shared"),
    Known("WANDB_PROJECT", "project at Weights & Biases", "art-gym"),
    Known("LANGFUSE_PUBLIC_KEY", "public key of Langfuse", secret=True),
    Known("LANGFUSE_SECRET_KEY", "secret key of Langfuse", secret=True),
    Known("LANGFUSE_HOST", "address of Langfuse", "https://cloud.langfuse.com"),
    Known("OPENPIPE_API_KEY", "key of OpenPipe", secret=True),
    Known("OPENPIPE_BASE_URL", "address of OpenPipe"),
    Known("OTEL_EXPORTER_OTLP_ENDPOINT", "where OpenTelemetry's traces go", "http://localhost:4318"),
    Known("OTEL_EXPORTER_OTLP_HEADERS", "headers for it, name=value,name=value", secret=True),
    Known("MLFLOW_TRACKING_URI", "address of MLflow; without one a store beside the run's folder"),
    Known("TRACKIO_DIR", "where trackio keeps its projects"),
    Known("ART_LOG_CLOSE_SECONDS", "how long sinks may take, all together, when a run ends", "5"),
    Known("ART_LOG_TABLE_SECONDS", "how often W&B's tables are sent their new rows, at most", "30"),
    Known("ART_LOG_TABLE_EPISODES", "how many episodes of a step W&B's tables show, at most", "128"),
    Known("VLLM_API_KEY", "key of a vLLM server", secret=True),
    Known("SGLANG_API_KEY", "key of an SGLang server", secret=True),
    Known("ART_SERVER_PORT", "port of art-trainer serve", "8270"),
    Known("ART_SERVER_TOKEN", "token between art-trainer serve and its workers", secret=True),
    Known("ART_CLIENT_WORKERS", "processes of art-trainer worker", "1"),
)
_BY_NAME: Mapping[str, Known] = {known.name: known for known in KNOWN}
DEFAULT = "default"
ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that is in force; its value shows itself to nobody who prints it."""

    known: Known
    value: str
    source: str
    """``"default"``, ``"environment"``, or a file's name and line."""

    @property
    def shown(self) -> str:
        """The value for a reader: of a secret only that there is one, of an address not its password."""
        return "********" if self.known.secret else redact(self.value)

    def __repr__(self) -> str:
        return f"Setting({self.known.name}={self.shown!r} from {self.source})"


@dataclass(frozen=True, slots=True, repr=False)
class ServiceSettings:
    """All settings that are in force.

    Attributes:
        settings: By name; those without a value are absent.
        unknown: Names in the file that are near to a known one, and the words about each.
    """

    settings: Mapping[str, Setting]
    unknown: Mapping[str, str]

    @property
    def values(self) -> dict[str, str]:
        """The values by name."""
        return {name: setting.value for name, setting in self.settings.items()}

    def integer(self, name: str, most: int | None = None) -> int:
        """The value of a setting that is a whole number from 1, such as ``ART_SERVER_PORT``.

        Args:
            name: The setting.
            most: The largest that it may be.

        Raises:
            ConfigError: Where it is none; the message says where it was set.
        """
        setting = self.settings[name]
        if not (setting.value.isdecimal() and 1 <= int(setting.value) <= (most or int(setting.value))):
            upwards = "" if most is None else f" to {most}"
            raise ConfigError(
                f"{name} from {setting.source} is {setting.value!r}: set a whole number from 1{upwards}"
            )
        return int(setting.value)


def load_settings(
    environ: Mapping[str, str] | None = None, file: Path | None = Path(".env")
) -> ServiceSettings:
    """Read the settings that are in force now.

    Args:
        environ: The environment's variables; by default the process's own.
        file: A file of ``NAME=value`` lines, which need not exist; ``None``: none.

    Raises:
        ConfigError: Where the file has a line that is no such line, or cannot be read.
    """
    environ = os.environ if environ is None else environ
    found = {
        known.name: Setting(known, known.default, DEFAULT) for known in KNOWN if known.default is not None
    }
    unknown = {}
    for name, (value, source) in _read_file(file).items() if file is not None else ():
        if name in _BY_NAME:
            if value:
                found[name] = Setting(_BY_NAME[name], value, source)
        elif near := difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.85):
            unknown[name] = f"{source}: no setting `{name}`; did you mean `{near[0]}`?"
    for known in KNOWN:
        if environ.get(known.name):
            found[known.name] = Setting(known, environ[known.name], ENVIRONMENT)
    return ServiceSettings(found, unknown)


def value_of(name: str) -> str | None:
    """The value of a setting that is in force now; ``None`` where it has none.

    Raises:
        ConfigError: As :func:`load_settings`.
    """
    return load_settings().values.get(name)


def _read_file(file: Path) -> dict[str, tuple[str, str]]:
    """A file's values and where each stands; the last of a name counts."""
    if not file.exists():
        return {}
    found = {}
    try:
        with file.open(encoding="utf-8") as stream:
            for binding in parse_stream(stream):
                place = f"{file.name} line {binding.original.line}"
                if binding.error:
                    # The line itself may hold a secret.
                    raise ConfigError(f"{place} is not NAME=value")
                if binding.key is not None:
                    found[binding.key] = (binding.value or "", place)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return found
