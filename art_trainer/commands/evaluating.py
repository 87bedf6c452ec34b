"""``art-trainer eval``: how good is a policy, and is it better than another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from art_trainer.analysis.changes import change_between
from art_trainer.analysis.tables import won_and_lost_lines
from art_trainer.commands.policies import MakeEnv, env_maker, load_policy
from art_trainer.commands.suite_words import command_for, files_of
from art_trainer.commands.tables import (
    comparison_lines,
    episode_bar,
    pass_table,
    results_table,
    strata_table,
    terms_table,
)
from art_trainer.display import number
from art_trainer.episodes import Episode
from art_trainer.errors import ConfigError
from art_trainer.evaluation import Evaluation, compare, evaluate, evaluate_starts
from art_trainer.policy import Policy
from art_trainer.suites.catalog import load_suite, starts_of
from art_trainer.suites.provenance import made_with
from art_trainer.suites.record import EvaluationRecord, PolicyRecord
from art_trainer.suites.suite import Suite
from art_trainer.suites.task_list import check_task_list

DEFAULT_ENV = "art/Email-v0"


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What ``art-trainer eval`` was asked for; the flags' help texts say what each means.

    ``None`` is what a flag was not given for: the suite's own, or the default.
    """

    policies: Sequence[str]
    suite: str | None = None
    env: str | None = None
    env_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    split: str | None = None
    episodes: int | None = None
    seed: int | None = None
    samples: int | None = None
    temperature: float | None = None
    max_completion_length: int | None = None
    max_batch: int = 256
    device: str | None = None
    compare: bool = False
    by: str | None = None
    json_file: Path | None = None


def run_eval(request: EvalRequest, console: Console) -> EvaluationRecord:
    """Evaluate the policies on the same starts, print the tables and write the JSON file.

    Raises:
        ConfigError: Where an environment, policy, suite or field of the tasks does not exist, the suite's
            tasks are not the environment's any more, or a comparison has only one policy.
        UnknownTask: Where the environment has no such split.
    """
    _check(request)
    suite, make_env = _chosen_suite(request)
    if suite.task_list_sha256 or request.json_file is not None:
        suite = dataclasses.replace(suite, task_list_sha256=check_task_list(make_env, suite))
    played = [
        play_suite(suite, words, make_env, console, max_batch=request.max_batch, device=request.device)
        for words in request.policies
    ]
    told = [dataclasses.replace(one, command=_command(request, suite, one.words)) for one in played]
    record = EvaluationRecord(suite, tuple(told), made_with(), request.max_batch, request.device)
    if request.json_file is not None:
        record.write(request.json_file)
    _print(record, console, with_difference=request.compare, by=request.by)
    return record


def play_suite(
    suite: Suite,
    words: str,
    make_env: MakeEnv,
    console: Console,
    *,
    max_batch: int,
    device: str | None,
) -> PolicyRecord:
    """Play a policy on a suite, with a bar that counts the episodes.

    Args:
        suite: What is played.
        words: The policy, as the command line names it.
        make_env: Makes the suite's environment.
        console: Where the bar is drawn.
        max_batch: Most conversations that a local model holds at once.
        device: Where a local model runs.

    Raises:
        ConfigError: Where there is no such policy.
    """
    policy = load_policy(
        words,
        make_env,
        temperature=suite.temperature,
        max_tokens=suite.max_completion_length,
        max_batch=max_batch,
        device=device,
    )
    files = files_of(words, policy)
    with episode_bar(console) as bar:
        task = bar.add_task(policy.name, total=suite.episodes)
        evaluation = evaluate_starts(
            policy,
            make_env,
            suite.rollout_starts(),
            split=suite.split,
            seed=suite.seed,
            samples=suite.samples,
            settings={"env_args": dict(suite.env_args), "temperature": suite.temperature},
            on_episode=lambda _: bar.advance(task),
        )
    return PolicyRecord(words=words, command="", evaluation=evaluation, files=files)


def evaluate_shown(
    policy: Policy,
    make_env: MakeEnv,
    console: Console,
    *,
    split: str | None,
    episodes: int | None,
    seed: int,
    settings: dict[str, Any],
    transcripts: list[Episode] | None = None,
) -> Evaluation:
    """Evaluate with a bar that counts the episodes.

    Raises:
        UnknownTask: Where the environment has no such split.
    """
    with episode_bar(console) as bar:
        task = bar.add_task(policy.name, total=episodes)
        return evaluate(
            policy,
            make_env,
            split=split,
            episodes=episodes,
            seed=seed,
            settings=settings,
            on_episode=lambda _: bar.advance(task),
            transcripts=transcripts,
        )


def _check(request: EvalRequest) -> None:
    if not request.policies:
        raise ConfigError("nothing to evaluate: name at least one --policy, such as --policy random")
    if request.compare and len(request.policies) < 2:
        raise ConfigError("--compare needs at least two --policy")
    if len(set(request.policies)) != len(request.policies):
        raise ConfigError("the same --policy is given twice")
    if request.suite is None:
        return
    fixed = (request.env, request.env_args or None, request.split, request.episodes, request.seed)
    flags = ("--env", "--env-args", "--split", "--episodes", "--seed")
    given = [flag for flag, value in zip(flags, fixed, strict=True) if value is not None]
    if given:
        raise ConfigError(
            f"{' and '.join(given)} cannot be given with --suite, which fixes what is played: leave one out"
        )


def _chosen_suite(request: EvalRequest) -> tuple[Suite, MakeEnv]:
    """The suite that is named, or one of the flags, with what makes its environment."""
    if request.suite is not None:
        suite = load_suite(request.suite)
        make_env = env_maker(suite.env, suite.env_args)
    else:
        seed = request.seed or 0
        make_env = env_maker(request.env or DEFAULT_ENV, request.env_args)
        env = make_env()
        try:
            split, starts = starts_of(env, split=request.split, episodes=request.episodes, seed=seed)
        finally:
            env.close()
        suite = Suite(
            env=request.env or DEFAULT_ENV, starts=starts, env_args=request.env_args, split=split, seed=seed
        )
    changes = {
        name: value
        for name in ("samples", "temperature", "max_completion_length")
        if (value := getattr(request, name)) is not None
    }
    return dataclasses.replace(suite, **changes), make_env


def _command(request: EvalRequest, suite: Suite, words: str) -> str:
    """What makes a policy's result again."""
    if request.suite is None:
        return command_for(suite, words, max_batch=request.max_batch, device=request.device)
    return command_for(
        request.suite,
        words,
        samples=request.samples,
        temperature=request.temperature,
        max_completion_length=request.max_completion_length,
        max_batch=request.max_batch,
        device=request.device,
    )


def _print(record: EvaluationRecord, console: Console, *, with_difference: bool, by: str | None) -> None:
    rows = [(policy.words, policy.evaluation) for policy in record.policies]
    if record.suite.name:
        console.print(f"Suite {record.suite.name}: {record.suite.about}", highlight=False, soft_wrap=True)
    for table in (results_table(rows), pass_table(rows), terms_table(rows)):
        if table is not None:
            console.print(table)
    if record.metric not in ("success", "reward"):
        for name, evaluation in rows:
            figure = number(evaluation.measured(record.metric))
            console.print(f"{record.metric} of {name}: {figure}", markup=False, highlight=False)
    for name, evaluation in rows:
        fault = next((result.error for result in evaluation.results if result.fault), None)
        if fault is not None:
            console.print(f"first fault of {name}: {fault}", markup=False, style="red", soft_wrap=True)
    if by is not None:
        try:
            console.print(strata_table(rows, by, record.metric))
        except ValueError as error:
            raise ConfigError(f"--by: {error}") from error
    if with_difference:
        evaluations = [evaluation for _, evaluation in rows]
        for line in comparison_lines(*(compare(first, second) for first, second in pairwise(evaluations))):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        for (first, before), (second, after) in pairwise(rows):
            for line in won_and_lost_lines(change_between(before, after)):
                console.print(f"{first} → {second}: {line}", markup=False, highlight=False, soft_wrap=True)
