"""``art-trainer suites``, ``make-suite`` and ``leaderboard``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from art_trainer.commands.policies import env_maker
from art_trainer.errors import ConfigError
from art_trainer.run_folder import write_text
from art_trainer.suites.catalog import load_suite, starts_of, suite_names, write_suite
from art_trainer.suites.leaderboard import leaderboard_page
from art_trainer.suites.record import read_record
from art_trainer.suites.suite import Suite
from art_trainer.suites.task_list import check_task_list, task_list_sha256


@dataclass(frozen=True, slots=True)
class MakeSuiteRequest:
    """What ``art-trainer make-suite`` was asked for; the flags' help texts say what each means."""

    file: Path
    env: str
    env_args: dict[str, Any]
    split: str | None
    episodes: int | None
    seed: int
    samples: int
    temperature: float
    max_completion_length: int
    metric: str
    about: str


def run_suites(console: Console, *, check: bool) -> None:
    """List the suites of the package, a line each.

    Args:
        console: Where to.
        check: Also hold each against its environment.

    Raises:
        ConfigError: Where a suite's tasks are not its environment's any more.
    """
    suites = [load_suite(name) for name in suite_names()]
    table = Table()
    for heading in ("suite", "what it asks"):
        table.add_column(heading, overflow="fold")
    for heading in ("episodes", "by"):
        table.add_column(heading, justify="right")
    for suite in suites:
        table.add_row(suite.name, suite.about, str(suite.episodes), suite.metric)
    console.print(table)
    for suite in suites if check else ():
        check_task_list(env_maker(suite.env, suite.env_args), suite)
        console.print(f"{suite.name}: its tasks are the environment's.", markup=False, highlight=False)


def run_make_suite(request: MakeSuiteRequest, console: Console) -> Suite:
    """Write a suite of the tasks that an evaluation would play, with the hash of what they are.

    Raises:
        ConfigError: Where the file's name does not end in .yaml, or there is no such environment.
        UnknownTask: Where the environment has no such split.
    """
    if request.file.suffix != ".yaml":
        raise ConfigError(f"{request.file}: the name of a suite's file ends in .yaml")
    make_env = env_maker(request.env, request.env_args)
    env = make_env()
    try:
        split, starts = starts_of(env, split=request.split, episodes=request.episodes, seed=request.seed)
    finally:
        env.close()
    suite = Suite(
        name=request.file.stem,
        about=request.about,
        env=request.env,
        env_args=request.env_args,
        split=split,
        seed=request.seed,
        samples=request.samples,
        temperature=request.temperature,
        max_completion_length=request.max_completion_length,
        metric=request.metric,
        task_list_sha256=task_list_sha256(make_env, starts),
        starts=starts,
    )
    write_suite(request.file, suite)
    console.print(
        f"{request.file}: {len(starts)} starts. Play it with: art-trainer eval --suite {request.file} "
        "--policy random",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return suite


def run_leaderboard(files: Sequence[Path], output: Path, names: Sequence[str], console: Console) -> None:
    """Write the page of result files.

    Args:
        files: Made by ``art-trainer eval --json``.
        output: The Markdown file.
        names: ``WORDS=NAME``: what to call the policy that was given by these words.
        console: Where to say so.

    Raises:
        ConfigError: For a name that is no such pair, or names no policy of the files.
        RecordError: For a file that is no result.
    """
    records = [read_record(file) for file in files]
    known = [policy.words for record in records for policy in record.policies]
    called = {}
    for pair in names:
        words, equals, name = pair.partition("=")
        if not equals or not name or words not in known:
            raise ConfigError(
                f"--name takes POLICY=NAME with a policy of the files ({', '.join(dict.fromkeys(known))}), "
                f"got {pair!r}"
            )
        called[words] = name
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, leaderboard_page(records, called))
    console.print(f"{output}: {len(known)} results.", markup=False, highlight=False, soft_wrap=True)
