"""``art-trainer suites`` and ``make-suite``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.cli import eval as evaluating
from art_trainer.cli.options import NO_PAIRS, Amount, Count, EnvArgs, Flag, MaxTokens, Split, Whole, command
from art_trainer.errors import ConfigError


@command(
    "suites",
    "`art-trainer suites` lists them.",
    "`art-trainer eval --suite email-v0-test --policy bm25 --json bm25.json` plays one.",
)
def suites(*, check: bool = False) -> None:
    """List the suites: fixed tasks and seeds for evaluations that can be compared and cited.

    Flags:
        check: Also check that each suite's tasks are still its environment's.
    """
    from art_trainer.analysis.suites import check_task_list, load_suite, suite_names
    from art_trainer.cli.console import make_table
    from art_trainer.rollout.envs import env_maker

    table = make_table(None, ["suite", "what it measures"], ["episodes", "by"])
    found = [load_suite(name) for name in suite_names()]
    for suite in found:
        table.add_row(suite.name, suite.about, str(suite.episodes), suite.metric)
    Console().print(table)
    for suite in found if check else ():
        check_task_list(env_maker(suite.env, suite.env_args), suite)
        typer.echo(f"{suite.name}: its tasks are the environment's.")


@command(
    "make-suite",
    "`art-trainer make-suite mine.yaml --env art/Email-v0 --env-args mailbox=mine.db` and then "
    "`art-trainer eval --suite mine.yaml --policy bm25`.",
)
def make_suite(
    file: Annotated[Path, Flag(metavar="FILE.yaml")],
    *,
    env: str,
    env_args: EnvArgs = NO_PAIRS,
    split: Split | None = None,
    episodes: Count | None = None,
    seed: Whole = 0,
    samples: Count = 1,
    temperature: Amount = 0.0,
    max_completion_length: MaxTokens = 256,
    metric: str = "auto",
    about: str = "",
) -> None:
    """Write a suite of your own: the tasks, the seeds, and a hash of the environment's tasks.

    Flags:
        file: Where to write; its name is the suite's.
        env: Environment with text observations and actions: its id, MODULE:ID, or a Python file.
        episodes: Number of starts. [default: every task of the split once]
        seed: Seed that the episodes' seeds are derived from.
        samples: Attempts at each start.
        temperature: Sampling temperature; 0 is greedy.
        metric: Metric that policies are ranked by: success, reward, a metric of the environment, or auto
            (success if the environment reports it, else reward).
        about: One line that describes the suite.
    """
    from art_trainer.rollout.envs import env_maker
    from art_trainer.tracking.run_dir import require_writable

    if file.suffix != ".yaml":
        raise ConfigError(f"{file}: the name of a suite's file ends in .yaml")
    require_writable(file)
    plain = evaluating.make_suite(env, env_args, split=split, episodes=episodes, seed=seed)
    from art_trainer.analysis.suites import task_list_sha256, write_suite

    suite = dataclasses.replace(
        plain,
        name=file.stem,
        about=about,
        samples=samples,
        temperature=temperature,
        max_completion_length=max_completion_length,
        metric=metric,
        task_list_sha256=task_list_sha256(env_maker(env, env_args), plain.starts),
    )
    write_suite(file, suite)
    typer.echo(
        f"{file}: {len(suite.starts)} starts. Play it with: art-trainer eval --suite {file} --policy random"
    )
