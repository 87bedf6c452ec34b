"""``art-trainer judge eval``: how well judges order attempts, compared with the environment's reward."""

from __future__ import annotations

import contextlib
import inspect
import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from art_gym.errors import did_you_mean
from art_gym.terminal import visible
from art_trainer.cli import options as flags
from art_trainer.cli.run_config import default_env
from art_trainer.errors import ConfigError, EvaluationFailedError

if TYPE_CHECKING:
    from art_gym.wrappers.judging import Judge
    from art_trainer.analysis.judge_evaluation import JudgeEvaluation
    from art_trainer.inference.policy import Policy
    from art_trainer.rollout.envs import MakeEnv

RUBRIC, OPENAI = "rubric", "openai:"
_LOOPBACK, _MAX_BODY = "127.0.0.1", 16 * 2**20
_TIMEOUT = 3600.0
"""Seconds that a model on this machine may take for an answer; it may wait for those of other groups."""

judge_app = typer.Typer(help="Judges: how well do they order attempts?", no_args_is_help=True)
# A callback keeps `eval` a sub-command although it is the only one.
judge_app.callback()(lambda: None)
flags.app.add_typer(judge_app, name="judge")


@flags.command(
    "eval",
    "`art-trainer judge eval --without-facts` rates the rubric on the generated mailbox.",
    "`art-trainer judge eval --judge openai:qwen3@http://localhost:8000/v1 --env art/Coding-v0`.",
    "`art-trainer judge eval --judge smollm2 --judge runs/Judge-v0-smollm2-0`: models on this machine.",
    "`art-trainer judge eval --env art/2048-v0 --policies random --policies greedy --policies snake`: chosen "
    "players, since some players of a game are slow.",
    "`art-trainer judge eval --episodes runs/Email-v0-art-tiny-1`: the groups of a recorded run.",
    app=judge_app,
)
def judge_eval(
    *,
    judge: Sequence[str] = (RUBRIC,),
    env: flags.EnvId | None = None,
    env_args: flags.EnvArgs = flags.NO_PAIRS,
    split: flags.Split | None = None,
    groups: flags.Count = 64,
    size: Annotated[int, flags.Flag(min=2)] = 8,
    policies: Sequence[str] = (),
    noise: Annotated[float, flags.Flag(min=0, max=1)] = 0.5,
    episodes: flags.RunDir | None = None,
    without_facts: bool = False,
    judge_args: Mapping[str, Any] = flags.NO_PAIRS,
    seed: flags.Whole = 0,
    json_: flags.JsonFile | None = None,
) -> None:
    """Compare judges' scores with the true reward on the same groups.

    Kendall's tau, whether the judge's best attempt is truly among the best, and the cost of a group.

    Flags:
        judge: rubric, openai:MODEL@URL (its key from OPENAI_API_KEY), or a model on this machine: a name of
            art-trainer models, a folder, a run, or a Hugging Face name.
        groups: Number of groups; of recorded ones the first.
        size: Attempts in a group.
        policies: Scripted players of the environment, in turn. [default: all]
        noise: Each scripted player also plays with random replies, of a share up to this; 0: never.
        episodes: Judge this run's recorded episodes instead.
        without_facts: Also rate the rubric without expected answer and outcome.
        judge_args: Argument of the judge model, such as cache=judge.db.
        seed: The same seed gives the same groups.
    """
    given = {name for name, value in locals().items() if value != _DEFAULTS[name]}
    if episodes is not None and (unused := given & _OF_PLAYING):
        flag = min(unused).replace("_", "-")
        raise ConfigError(f"--episodes judges what was recorded: leave --{flag} out")
    from art_trainer.rollout.envs import env_maker, find_env

    _check_twice("judge", judge)
    console = Console()
    if episodes is None:
        env = find_env(env or default_env()).name
        make_env = env_maker(env, env_args)
        players = _players(env, make_env, policies, noise)
    from art_trainer.analysis.judge_evaluation import evaluate_judge
    from art_trainer.analysis.mixed_groups import mixed_starts, play_mixed_groups, recorded_groups
    from art_trainer.cli.console import episode_bar
    from art_trainer.tracking.run_dir import require_writable, write_text

    if json_ is not None:
        require_writable(json_)
    evaluations, failures = [], []
    with contextlib.ExitStack() as stack:
        rated = [one for name in judge for one in _judges(name, without_facts, judge_args, stack)]
        if episodes is not None:
            played = recorded_groups(episodes, groups)
            env = played[0].group.episodes[0].env_id
        else:
            starts = mixed_starts(make_env, groups=groups, size=size, split=split, seed=seed)
            with episode_bar(console, "attempts", len(starts) * size) as on_episode:
                played = play_mixed_groups(players, make_env, starts, on_episode=on_episode)
        whole = [one for one in played if one.group.whole]
        if not whole:
            first = next(e.error for one in played for e in one.group.episodes if e.failed)
            raise ConfigError(f"a fault ended an attempt of every group, such as: {first}")
        for name, one in rated:
            with episode_bar(console, name, len(whole)) as advance:
                try:
                    found = evaluate_judge(name, one, whole, on_done=lambda: advance(None))
                except EvaluationFailedError as failure:
                    failures.append(failure)
                else:
                    evaluations.append(found)
    if not evaluations:
        raise failures[0]
    print_judges(evaluations, len(played) - len(whole), console)
    if json_ is not None:
        record: dict[str, Any] = {"env": env, "recorded": None if episodes is None else str(episodes)}
        if episodes is None:
            record |= {"env_args": dict(env_args), "split": split, "size": size, "noise": noise, "seed": seed}
        record["judges"] = [evaluation.to_json() for evaluation in evaluations]
        write_text(json_, json.dumps(record, ensure_ascii=False, indent=1))
    for one_failure in failures:
        console.print(Text(visible(str(one_failure)), "red"), soft_wrap=True)
    if failures:
        raise typer.Exit(1)


_DEFAULTS = {name: one.default for name, one in inspect.signature(judge_eval).parameters.items()}
_OF_PLAYING = {"env", "env_args", "split", "size", "policies", "noise", "seed"}


def _check_twice(flag: str, names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"--{flag} {name} is given twice")


def _judges(
    name: str, without_facts: bool, arguments: Mapping[str, Any], stack: contextlib.ExitStack
) -> Iterator[tuple[str, Judge]]:
    """Names and judges: the one that the command line names; for the rubric also the one without facts."""
    from art_gym.wrappers.judging import JudgingError, RubricJudge
    from art_trainer.analysis.judge_evaluation import blind_judge
    from art_trainer.training.run_setup import llm_judge

    try:
        if name == RUBRIC:
            yield name, RubricJudge()
            if without_facts:
                yield f"{name} without facts", blind_judge(RubricJudge())
            return
        own: dict[str, Any] = {}
        address = name
        if not name.startswith(OPENAI):
            address, own = stack.enter_context(_served(name))
        yield name, stack.enter_context(llm_judge(address, **{**own, **arguments}))
    except (JudgingError, TypeError) as error:
        raise ConfigError(f"--judge {name}: {error}") from error


@contextlib.contextmanager
def _served(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Serve a model of this machine over HTTP; yields what names it, and arguments for its judge."""
    from art_trainer.inference.sampling import SamplingParams
    from art_trainer.models.loading import ModelOptions
    from art_trainer.serving.dialects import ServedPolicy, dialect_router
    from art_trainer.serving.http.middleware import AccessPolicy, HostNames
    from art_trainer.serving.http.server import ServerThread, create_app
    from art_trainer.training.run_setup import local_policy

    policy = local_policy(name, ModelOptions(), sampling=SamplingParams(), baselines=(RUBRIC,))
    token = secrets.token_urlsafe()
    app = create_app(AccessPolicy(HostNames(_LOOPBACK), _MAX_BODY, token=token), "OpenAI's API below /v1")
    with ServedPolicy(policy) as served:
        app.include_router(dialect_router(served))
        server = ServerThread(app, _LOOPBACK, 0, name="judge")
        try:
            yield f"{OPENAI}{served.name}@{server.url}/v1", {"api_key": token, "timeout": _TIMEOUT}
        finally:
            server.stop()


def _players(env: str, make_env: MakeEnv, names: Sequence[str], noise: float) -> list[Policy]:
    """Who plays: each player as it is, then each scripted one but the random one with noise."""
    from art_trainer.analysis.mixed_groups import NoisyScriptedPolicy
    from art_trainer.inference.scripted_policy import RANDOM, ScriptedPolicy
    from art_trainer.rollout.envs import player_names

    known = player_names(make_env)
    if not known:
        raise ConfigError(f"{env} has no scripted players: judge the attempts of a run with --episodes")
    for name in names:
        if name not in known:
            raise ConfigError(f"--policies: {env} has no player `{name}`{did_you_mean(name, known)}")
    names = names or known
    _check_twice("policies", names)
    if noise and RANDOM not in known:
        raise ConfigError(f"{env} has no player `{RANDOM}` for random replies: set --noise 0")
    noisy = [NoisyScriptedPolicy(name, noise) for name in names if name != RANDOM] if noise else []
    return [*map(ScriptedPolicy, names), *noisy]


# ----------------------------------------------------------------------
# Tables.


def print_judges(evaluations: Sequence[JudgeEvaluation], dropped: int, console: Console) -> None:
    """Print how well each judge orders, and its cost."""
    from art_trainer.cli.console import make_table, two_lines
    from art_trainer.formatting import number

    first = evaluations[0]
    caption = (
        "tau: Kendall's tau-b with the true reward. success: how often a success is scored above a failure, "
        "0.5 by chance. top-1: the judge's best attempt is among the truly best. chance: a random one is."
    )
    if dropped:
        caption += f" Left out, because a fault ended an attempt: {dropped}."
    title = f"{len(first.groups) + sum(first.failures.values())} groups, 95% intervals"
    order = make_table(title, ["judge"], ["tau", "success", "top-1", "chance", "failed"], caption)
    cost = make_table("Cost of a group", ["judge"], ["requests", "tokens", "cost"])
    for one in evaluations:
        failed = ", ".join(f"{count} {reason}" for reason, count in one.failures.items()) or "0"
        figures = (two_lines(number(one.figures[name])) for name in ("tau", "success_above", "top"))
        chance = one.figures["chance"]
        order.add_row(one.judge, *figures, "–" if chance is None else f"{chance.value:.3f}", failed)
        used = one.usage
        if used is not None and used.groups:
            tokens = (used.prompt_tokens + used.completion_tokens) / used.groups
            paid = f"{used.cost / used.groups:.3g}" if used.cost else "–"
            cost.add_row(one.judge, f"{used.requests / used.groups:.1f}", f"{tokens:.0f}", paid)
    console.print(order)
    if cost.row_count:
        console.print(cost)
