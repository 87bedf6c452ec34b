"""``art-trainer eval``: how good is a policy, and is it better than another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from art_trainer.commands.policies import MakeEnv, env_maker, load_policy
from art_trainer.commands.tables import comparison_lines, episode_bar, results_table, terms_table
from art_trainer.episodes import Episode
from art_trainer.errors import ConfigError
from art_trainer.evaluation import Evaluation, compare, evaluate
from art_trainer.policy import Policy
from art_trainer.run_folder import write_text


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What ``art-trainer eval`` was asked for; the flags' help texts say what each means."""

    policies: Sequence[str]
    env: str
    env_args: dict[str, Any]
    split: str | None
    episodes: int | None
    seed: int
    temperature: float
    max_tokens: int
    max_batch: int
    device: str | None
    compare: bool
    json_file: Path | None


def run_eval(request: EvalRequest, console: Console) -> list[Evaluation]:
    """Evaluate the policies on the same starts, print the tables and write the JSON file.

    Raises:
        ConfigError: Where an environment or policy does not exist, or a comparison has only one policy.
    """
    if request.compare and len(request.policies) < 2:
        raise ConfigError("--compare needs at least two --policy")
    if len(set(request.policies)) != len(request.policies):
        raise ConfigError("the same --policy is given twice")
    make_env = env_maker(request.env, request.env_args)
    evaluations = []
    for words in request.policies:
        policy = load_policy(
            words,
            make_env,
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            max_batch=request.max_batch,
            device=request.device,
        )
        evaluation = evaluate_shown(
            policy,
            make_env,
            console,
            split=request.split,
            episodes=request.episodes,
            seed=request.seed,
            settings={"env_args": request.env_args, "temperature": request.temperature},
        )
        evaluations.append(evaluation)
    rows = [(words, evaluation) for words, evaluation in zip(request.policies, evaluations, strict=True)]
    _print(rows, console, with_difference=request.compare)
    if request.json_file is not None:
        text = json.dumps([evaluation.to_json() for evaluation in evaluations], ensure_ascii=False, indent=1)
        write_text(request.json_file, text)
    return evaluations


def _print(rows: Sequence[tuple[str, Evaluation]], console: Console, *, with_difference: bool) -> None:
    console.print(results_table(rows))
    terms = terms_table(rows)
    if terms is not None:
        console.print(terms)
    for name, evaluation in rows:
        fault = next((result.error for result in evaluation.results if result.fault), None)
        if fault is not None:
            console.print(f"first fault of {name}: {fault}", markup=False, style="red", soft_wrap=True)
    if with_difference:
        for (_, first), (_, second) in pairwise(rows):
            for line in comparison_lines(compare(first, second)):
                console.print(line, markup=False, highlight=False, soft_wrap=True)


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
