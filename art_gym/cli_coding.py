"""``art-gym coding``: check a file of programming tasks before anybody learns from it.

As `art_gym.cli`, of which it is a part, it imports typer and rich only when a command runs, and does without
``from __future__ import annotations``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

    from art_gym.envs.coding.problem import Problem
    from art_gym.envs.coding.validate import Finding

_VALIDATE_HELP = """Grade reference and wrong answers of every task of a file, and report what is broken.

FILE is the project's own JSONL, or HumanEval, MBPP, EvalPlus, APPS, code_contests or Exercism as JSONL (also
.gz, .xz), a checkout of QuixBugs or of Exercism's Python track, or "builtin". A task is broken when its
reference fails, or when an answer passes that ignores its input. The exit code is 1 when one is.

Example: art-gym coding validate HumanEval.jsonl.gz --out humaneval.jsonl
"""


def coding_app() -> "typer.Typer":
    """The ``coding`` command with its sub-commands."""
    import typer

    app = typer.Typer(help="Programming tasks for art/Coding-v0.", no_args_is_help=True)
    # A callback keeps `validate` a sub-command although it is the only one.
    app.callback()(lambda: None)
    app.command("validate", help=_VALIDATE_HELP)(_command_validate())
    return app


def _command_validate() -> Callable[..., None]:
    import typer

    def command(
        file: Annotated[Path, typer.Argument(help="The tasks.", show_default=False)],
        format: Annotated[
            str | None, typer.Option(help="The file's format.", show_default="told by the content")
        ] = None,
        out: Annotated[Path | None, typer.Option(help="Write the tasks that are not broken here.")] = None,
    ) -> None:
        from art_gym.envs.coding.loaders import save_problems
        from art_gym.errors import ArtGymError

        try:
            problems, summary = _load(file, format)
            print(summary)
            findings = _validate(problems)
            broken = {finding.problem for finding in findings if finding.broken}
            for finding in findings:
                print(f"{'broken' if finding.broken else 'weak'}: {finding.problem}: {finding.what}")
            print(f"{len(problems) - len(broken)} of {len(problems)} tasks are sound")
            if out is not None:
                save_problems((problem for problem in problems if problem.id not in broken), out)
                print(f"written to {out}")
        except (ValueError, OSError, ArtGymError) as error:
            print(f"art-gym: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        raise typer.Exit(1 if broken else 0)

    return command


def _load(file: Path, format: str | None) -> "tuple[tuple[Problem, ...], str]":
    """The problems, and an account of what was loaded."""
    from art_gym.envs.coding.loaders import load_problems
    from art_gym.envs.coding.problems import load

    if str(file) == "builtin":
        return load(), f"{len(load())} problems (built in)"
    loaded = load_problems(file, format)
    return loaded.problems, loaded.summary()


def _validate(problems: "tuple[Problem, ...]") -> "list[Finding]":
    """The findings, while a bar on the terminal shows how far it is."""
    from art_gym.envs.coding.sharing import shared_sandbox
    from art_gym.envs.coding.validate import validate

    with _progress(len(problems)) as advance:
        return validate(problems, shared_sandbox(), on_problem=lambda problem, findings: advance())


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("validating", total=total)
        yield lambda: bar.advance(task)
