"""``art-trainer supervise``: which command is begun again how.

A command that trains is begun again by ``--resume RUN`` in place of the flags that say what the run is: those
are in the run's folder by then. Flags that are no settings of a run, such as the address of a server, are not
in there and stay. What comes before (``torchrun --nproc-per-node 2 -m art_trainer``) stays, too.

Until there is something to resume, the command is begun again as it was: a new run until its settings are
written, a run that is gone on with until it has saved its next checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from art_trainer.cli_flags import given
from art_trainer.commands.gathering import TrainRequest, gather_settings
from art_trainer.commands.settings import DEFAULT, RunSettings, parse_pairs
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.run_folder import RunFolder
from art_trainer.supervisor import Supervisor, progress_of

SUPERVISED = ("train", "serve")
_PROGRAMS = ("art-trainer", "art_trainer", "art_trainer.cli", "art_trainer/__main__.py", "art_trainer/cli.py")
_PAIRS = ("env_args", "train_env_args")
_SETTINGS = {item.name for of in (RunSettings, GRPOConfig) for item in dataclasses.fields(of)}
_SAVED = {*_SETTINGS, "config", "set_", "resume", "resume_step"}
"""Names of flags that a run's folder makes up for."""


@dataclass(frozen=True, slots=True)
class SuperviseRequest:
    """What ``art-trainer supervise`` was asked for."""

    command: Sequence[str]
    max_restarts: int = 5
    hang_seconds: float | None = None


class TrainingCommand:
    """A command that trains, and how it is begun and begun again.

    Args:
        words: The command as it was given.
        commands: ``art-trainer``'s own commands by name, as typer makes them: they know their flags.

    Raises:
        ConfigError: Where it is no command that trains, or one that would be refused.

    Attributes:
        folder: The run's folder: the one it names, or else the one that it would choose now.
    """

    def __init__(self, words: Sequence[str], commands: Mapping[str, Any]) -> None:
        place = _place_of_name(words)
        self._before, self._flags = list(words[: place + 1]), list(words[place + 1 :])
        self._parser = commands[words[place]]
        values = self._parser.make_context(words[place], list(self._flags)).params
        self._resumes = values["resume"] is not None
        settings = gather_settings(_request(values))
        self.folder = Path(settings.config.output_dir)
        self._names_folder = self._resumes or settings.sources["output_dir"] != DEFAULT
        self._saved_before = progress_of(self.folder).checkpoint

    def __call__(self) -> list[str]:
        """What to run now."""
        if self._has_begun():
            kept = [word for name, words in self._cut() if name not in _SAVED for word in words]
            return [*self._before, *kept, "--resume", str(self.folder)]
        chosen = [] if self._names_folder else ["--output-dir", str(self.folder)]
        return [*self._before, *self._flags, *chosen]

    def _has_begun(self) -> bool:
        """Whether the folder now holds what this command is about."""
        if self._resumes:
            # Until then it may be about to go back to --resume-step, or to write changed settings.
            return progress_of(self.folder).checkpoint != self._saved_before
        return RunFolder(self.folder).settings_file.exists()

    def _cut(self) -> Iterator[tuple[str, list[str]]]:
        """Cut the flags into one after the other, each with its value, and the parameter's name before it."""
        flags = {flag: parameter for parameter in self._parser.params for flag in parameter.opts}
        words = iter(self._flags)
        for word in words:
            flag, equals, _ = word.partition("=")
            parameter = flags[flag]
            takes = 0 if equals or parameter.is_flag else parameter.nargs
            yield parameter.name, [word, *(next(words) for _ in range(takes))]


def run_supervise(request: SuperviseRequest, commands: Mapping[str, Any], console: Console) -> int:
    """Run a command that trains until it is done.

    Args:
        request: What was asked for.
        commands: ``art-trainer``'s own commands by name.
        console: Where to say what happens.

    Returns:
        The command's last exit code.

    Raises:
        ConfigError: Where it is no command that trains, is one that would be refused, or cannot be started.
    """

    def say(line: str) -> None:
        console.print(f"supervise: {line}", markup=False, highlight=False, soft_wrap=True)

    command = TrainingCommand(request.command, commands)
    say(f"The run's folder is {command.folder}.")
    return Supervisor(
        command.folder,
        command,
        say,
        max_restarts=request.max_restarts,
        hang_seconds=request.hang_seconds,
    ).run()


def _place_of_name(words: Sequence[str]) -> int:
    """Where in a command ``train`` or ``serve`` stands: right after the program's name."""
    for place, (program, name) in enumerate(itertools.pairwise(words), start=1):
        if name in SUPERVISED and program.endswith(_PROGRAMS):
            return place
    raise ConfigError(
        f"supervise: no art-trainer {' or '.join(SUPERVISED)} in `{' '.join(words)}`: give the whole "
        "command, as in `art-trainer supervise -- art-trainer train --max-steps 40`"
    )


def _request(values: Mapping[str, Any]) -> TrainRequest:
    """What a command would ask for with these values of its flags."""
    single = {name: values[name] for name in _SETTINGS.difference(_PAIRS).intersection(values)}
    pairs = {name: values[name] for name in _PAIRS if name in values}
    overrides = parse_pairs(values["set_"], "--set", as_yaml=True)
    return TrainRequest(
        given(single, pairs), overrides, values["config"], values["resume"], values["resume_step"]
    )
