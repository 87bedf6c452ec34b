"""``art-trainer supervise``: run a training command and restart it from its checkpoint.

A command is restarted with ``--resume RUN`` in place of the flags that say what the run is: those are in the
run's folder by then. Flags that are no settings of a run, such as the address of a server, stay. What comes
before (``torchrun --nproc-per-node 2 -m art_trainer``) stays, too.

Until there is something to resume, the command is restarted unchanged: a new run until its settings are
written, a resumed run until it has saved its next checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.main

from art_trainer.cli.options import SHARED_FLAGS, Flag, Whole, app, command, settings_of
from art_trainer.errors import ConfigError
from art_trainer.training.run_settings import DEFAULT, SETTINGS
from art_trainer.training.supervisor import Supervisor, TrainingJob, progress_of

SUPERVISED = ("train", "serve")
_PROGRAMS = (
    *("art-trainer", "art_trainer", "art_trainer.cli.main"),
    *("art_trainer/__main__.py", "art_trainer/cli/main.py"),
)
_SAVED = {*SETTINGS, *SHARED_FLAGS}
"""Names of the flags whose values are in the run's folder."""


@command(
    "supervise",
    "`art-trainer supervise -- art-trainer train --max-steps 200`.",
    "`art-trainer supervise -- torchrun --nproc-per-node 2 -m art_trainer train --set sharding=fsdp2`.",
    "`art-trainer supervise --hang-seconds 1800 -- art-trainer serve --host 10.0.0.5 --token-file t`.",
)
def supervise(
    command: Annotated[Sequence[str], Flag(metavar="COMMAND")],
    *,
    max_restarts: Whole = 5,
    hang_seconds: Annotated[float, Flag(min=1)] | None = None,
) -> None:
    """Run a training command, and restart it from its checkpoint whenever it fails.

    It is not restarted after the end of training, a wrong setting (code 2), Ctrl-C or SIGTERM: those are
    passed on to the command, which saves a checkpoint; a second one kills it. All its processes end together.
    Each restart is written to the run's `restarts.jsonl`.

    Flags:
        command: `art-trainer train` or `serve` with its flags; torchrun may start it.
        max_restarts: Restarts in a row without a new step or checkpoint.
        hang_seconds: Kill and restart the run if nothing in its folder has changed for so many seconds: more
            than loading, a step or an evaluation takes, and than workers may be away. [default: never]
    """
    training = TrainingCommand(command)
    typer.echo(f"supervise: The run's folder is {training.folder}.")
    job = TrainingJob(training.folder, training, max_restarts=max_restarts, hang_seconds=hang_seconds)
    raise typer.Exit(Supervisor([job]).run())


class TrainingCommand:
    """A command that trains, and how to start and restart it.

    Args:
        words: The command as it was given.

    Raises:
        ConfigError: If it does not train, or one of its settings is wrong.

    Attributes:
        folder: The run's folder: the one it names, or else the one that it would choose now.
    """

    def __init__(self, words: Sequence[str]) -> None:
        place = _place_of_name(words)
        self._before, self._flags = list(words[: place + 1]), list(words[place + 1 :])
        group: Any = typer.main.get_command(app)
        self._parser = group.commands[words[place]]
        values = self._parser.make_context(words[place], list(self._flags)).params
        settings = settings_of({name: values[name] for name in _SAVED & values.keys()})
        self._resumes = settings.resume is not None
        self._run = settings.folder
        self.folder = self._run.path
        self._names_folder = self._resumes or settings.sources["output_dir"] != DEFAULT
        self._saved_before = progress_of(self.folder).checkpoint

    def __call__(self) -> list[str]:
        """What to run now."""
        if self._has_begun():
            return [*self._before, *self._flags_to_keep(), "--resume", str(self.folder)]
        chosen = [] if self._names_folder else ["--output-dir", str(self.folder)]
        return [*self._before, *self._flags, *chosen]

    def _has_begun(self) -> bool:
        """Whether the folder now holds this command's run."""
        if self._resumes:
            # Until then it may be about to go back to --resume-step, or to write changed settings.
            return progress_of(self.folder).checkpoint != self._saved_before
        return self._run.settings_file.exists()

    def _flags_to_keep(self) -> list[str]:
        """The flags, with their values, that are not in the run's folder."""
        parameters = {flag: one for one in self._parser.params for flag in one.opts}
        words, kept = iter(self._flags), []
        for word in words:
            flag, equals, _ = word.partition("=")
            one = parameters[flag]
            found = [word, *itertools.islice(words, 0 if equals or one.is_flag else one.nargs)]
            kept += [] if one.name in _SAVED else found
        return kept


def _place_of_name(words: Sequence[str]) -> int:
    """The index of ``train`` or ``serve`` in a command: right after the program's name."""
    for place, (program, name) in enumerate(itertools.pairwise(words), start=1):
        if name in SUPERVISED and program.endswith(_PROGRAMS):
            return place
    raise ConfigError(
        f"supervise: no art-trainer {' or '.join(SUPERVISED)} in `{' '.join(words)}`: give the whole "
        "command, as in `art-trainer supervise -- art-trainer train --max-steps 40`"
    )
