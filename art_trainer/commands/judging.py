"""``art-trainer judge eval``: how well judges order attempts, beside what the environment paid."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging import JudgingError, RubricJudge
from art_trainer.commands.judging_output import judge_plot, print_judges
from art_trainer.commands.policies import MakeEnv, env_maker, load_policy, openai_words, player_names
from art_trainer.commands.tables import episode_bar
from art_trainer.errors import ConfigError
from art_trainer.judge_evaluation import JudgeEvaluation, RatedJudge, evaluate_judge
from art_trainer.mixed_groups import (
    RANDOM,
    PlayedGroup,
    StrayingPolicy,
    mixed_starts,
    play_mixed_groups,
    recorded_groups,
)
from art_trainer.monitoring.settings import value_of
from art_trainer.noisy_judge import NoisyJudge
from art_trainer.policy import Policy
from art_trainer.run_folder import write_text
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.without_facts import WithoutFacts

RUBRIC, NOISY, OPENAI = "rubric", "noisy:", "openai:"


@dataclass(frozen=True, slots=True)
class JudgeEvalRequest:
    """What ``art-trainer judge eval`` was asked for; the flags' help texts say what each means."""

    judges: Sequence[str]
    env: str
    env_args: Mapping[str, Any]
    split: str | None
    groups: int
    size: int
    policies: Sequence[str]
    noise: float
    recorded: Path | None
    without_facts: bool
    judge_args: Mapping[str, Any]
    checks: int
    orders: int
    seed: int
    max_tokens: int
    json_file: Path | None
    plot_file: Path | None


def run_judge_eval(request: JudgeEvalRequest, console: Console) -> list[JudgeEvaluation]:
    """Play or read the groups, have each judge score them, print the tables and write the files.

    Raises:
        ConfigError: Where an environment, player or judge does not exist, or there is nothing to judge.
        JudgingError: Where a judge is set up wrongly.
    """
    if len(set(request.judges)) != len(request.judges):
        raise ConfigError("the same --judge is given twice")
    with contextlib.ExitStack() as judges:
        rated = [one for words in request.judges for one in _rated(words, request, judges)]
        played = _groups(request, console)
        groups = [one for one in played if one.group.whole]
        if not groups:
            first = next(e.error for one in played for e in one.group.episodes if e.failed)
            raise ConfigError(f"a fault ended an attempt of every group, such as: {first}")
        evaluations = [_evaluated(one, groups, request, console) for one in rated]
    print_judges(evaluations, len(played) - len(groups), console)
    if request.json_file is not None:
        write_text(request.json_file, json.dumps(_record(request, evaluations), ensure_ascii=False, indent=1))
    if request.plot_file is not None:
        write_text(request.plot_file, judge_plot(evaluations))
    return evaluations


def _record(request: JudgeEvalRequest, evaluations: Sequence[JudgeEvaluation]) -> dict[str, Any]:
    return {
        "env": request.env,
        "env_args": dict(request.env_args),
        "split": request.split,
        "recorded": None if request.recorded is None else str(request.recorded),
        "size": request.size,
        "noise": request.noise,
        "seed": request.seed,
        "judges": [evaluation.to_json() for evaluation in evaluations],
    }


def _evaluated(
    rated: RatedJudge, groups: Sequence[PlayedGroup], request: JudgeEvalRequest, console: Console
) -> JudgeEvaluation:
    with episode_bar(console) as bar:
        task = bar.add_task(rated.name, total=len(groups) + min(request.checks, len(groups)))
        return evaluate_judge(
            rated,
            groups,
            checks=request.checks,
            orders=request.orders,
            seed=request.seed,
            on_done=lambda: bar.advance(task),
        )


def _rated(words: str, request: JudgeEvalRequest, judges: contextlib.ExitStack) -> Iterator[RatedJudge]:
    """The judge that the command line names, and for the rubric also the one without facts.

    Raises:
        ConfigError: Where there is none of that name.
    """
    try:
        if words == RUBRIC:
            yield RatedJudge(words, RubricJudge())
            if request.without_facts:
                yield RatedJudge(f"{words} without facts", WithoutFacts(RubricJudge()))
        elif words.startswith(NOISY):
            yield RatedJudge(words, NoisyJudge(_share(words), request.seed))
        elif words.startswith(OPENAI):
            yield _model_judge(words, request.judge_args, judges)
        else:
            known = (RUBRIC, f"{NOISY}P", f"{OPENAI}MODEL@URL")
            raise ConfigError(f"no judge {words!r}{did_you_mean(words, known)}; there are {', '.join(known)}")
    except (JudgingError, TypeError) as error:
        raise ConfigError(f"--judge {words}: {error}") from error


def _share(words: str) -> float:
    try:
        return float(words.removeprefix(NOISY))
    except ValueError:
        raise ConfigError(f"{words!r}: write noisy:P, P a share of the groups, as in noisy:0.2") from None


def _model_judge(words: str, arguments: Mapping[str, Any], judges: contextlib.ExitStack) -> RatedJudge:
    model, url = openai_words(words)
    try:
        from art_gym.wrappers.judging.llm_judge import LLMJudge

        def make(cached: bool) -> LLMJudge:
            given = {name: value for name, value in arguments.items() if cached or name != "cache"}
            judge = LLMJudge(model, url, api_key=value_of("OPENAI_API_KEY"), **given)
            return judges.enter_context(judge)

        judge = make(cached=True)
        return RatedJudge(words, judge, make(cached=False) if "cache" in arguments else None)
    except ImportError as error:
        raise ConfigError(f'{words} needs the package openai: pip install "art-gym[openai]"') from error


def _groups(request: JudgeEvalRequest, console: Console) -> list[PlayedGroup]:
    """The groups to judge: those of a recorded run, or played now."""
    if request.recorded is not None:
        return recorded_groups(request.recorded, request.groups)
    if request.size < 2:
        raise ConfigError(f"--size is {request.size}: an order needs at least two attempts")
    make_env = env_maker(request.env, request.env_args)
    policies = _policies(request, make_env)
    starts = mixed_starts(make_env, groups=request.groups, split=request.split, seed=request.seed)
    with episode_bar(console) as bar:
        task = bar.add_task("attempts", total=len(starts) * request.size)
        return play_mixed_groups(
            policies, make_env, starts, request.size, on_episode=lambda _: bar.advance(task)
        )


def _policies(request: JudgeEvalRequest, make_env: MakeEnv) -> list[Policy]:
    """Who plays: each player as it is, then each scripted one but the random one with noise.

    Raises:
        ConfigError: Where nobody has such a name, or the environment has no players of its own.
    """
    players = player_names(make_env)
    names = list(request.policies) or list(players)
    if not names:
        raise ConfigError(f"{request.env} has no scripted players: name some with --policies")
    if (twice := Counter(names).most_common(1)[0])[1] > 1:
        raise ConfigError(f"--policies {twice[0]} is given twice")
    policies: list[Policy] = [
        ScriptedPolicy(name)
        if name in players
        else load_policy(name, make_env, temperature=1.0, max_tokens=request.max_tokens)
        for name in names
    ]
    if request.noise:
        if RANDOM not in players:
            raise ConfigError(f"{request.env} has no player `{RANDOM}` for replies at random: set --noise 0")
        straying = [name for name in names if name in players and name != RANDOM]
        policies += [StrayingPolicy(name, request.noise) for name in straying]
    return policies
