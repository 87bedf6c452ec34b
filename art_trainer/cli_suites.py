"""``art-trainer suites``, ``make-suite`` and ``leaderboard``: their flags.

The work lies in :mod:`art_trainer.commands.suites`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.cli_flags import EnvArgs, EnvId, MaxTokens

_SUITES_EPILOG = (
    "Examples:\n\n`art-trainer suites` lists them.\n\n"
    "`art-trainer eval --suite email-v0-test --policy bm25 --json bm25.json` plays one."
)
_MAKE_EPILOG = (
    "Example:\n\n`art-trainer make-suite mine.yaml --env art/Email-v0 --env-args mailbox=mine.db` and then "
    "`art-trainer eval --suite mine.yaml --policy bm25`."
)
_LEADERBOARD_EPILOG = (
    "Example:\n\n`art-trainer leaderboard bm25.json after.json --name runs/mine='mine, trained' "
    "--output docs/leaderboard.md`."
)


def suites(
    check: Annotated[
        bool, typer.Option("--check", help="Also see that each one's tasks are still its environment's.")
    ] = False,
) -> None:
    """List the suites: fixed tasks and seeds for evaluations that can be compared and cited."""
    from art_trainer.commands.suites import run_suites

    run_suites(Console(), check=check)


def make_suite(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.yaml", help="Where to write; its name is the suite's.")
    ],
    env: EnvId,
    env_args: EnvArgs = [],  # noqa: B006 (typer reads it, nobody changes it)
    split: Annotated[
        str | None, typer.Option(help="Split of the tasks. [default: test, or the first]")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="How many starts. [default: every task of the split once]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="What the seeds are derived from.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Attempts at each start.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    max_tokens: MaxTokens = 256,
    metric: Annotated[
        str,
        typer.Option(
            help="What policies are ranked by: success, reward, a metric of the environment, or auto "
            "(success where it is told, else reward)."
        ),
    ] = "auto",
    about: Annotated[str, typer.Option(help="One line for the reader.")] = "",
) -> None:
    """Write a suite of your own: the tasks, the seeds, and a hash of what the environment says they are."""
    from art_trainer.commands.settings import parse_pairs
    from art_trainer.commands.suites import MakeSuiteRequest, run_make_suite

    request = MakeSuiteRequest(
        file=file,
        env=env,
        env_args=parse_pairs(env_args, "--env-args"),
        split=split,
        episodes=episodes,
        seed=seed,
        samples=samples,
        temperature=temperature,
        max_completion_length=max_tokens,
        metric=metric,
        about=about,
    )
    run_make_suite(request, Console())


def leaderboard(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Results of `art-trainer eval --json`.")
    ],
    output: Annotated[Path, typer.Option(metavar="FILE.md", help="The page.")] = Path("docs/leaderboard.md"),
    name: Annotated[
        list[str],
        typer.Option(metavar="POLICY=NAME", help="What to call a policy of the files. Repeatable."),
    ] = [],  # noqa: B006
) -> None:
    """Write a page of results: a table a suite, each row with its interval and the command that made it."""
    from art_trainer.commands.suites import run_leaderboard

    run_leaderboard(files, output, name, Console())


def add_suite_commands(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command(epilog=_SUITES_EPILOG)(suites)
    app.command("make-suite", epilog=_MAKE_EPILOG)(make_suite)
    app.command(epilog=_LEADERBOARD_EPILOG)(leaderboard)
