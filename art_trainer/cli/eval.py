"""``art-trainer eval``: evaluate policies on the same starts, compare them, and verify earlier results."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from art_gym.terminal import visible
from art_trainer.cli import options as flags
from art_trainer.cli.run_config import env_of_policies
from art_trainer.errors import CheckpointError, ConfigError, EvaluationFailedError
from art_trainer.tracking.run_dir import require_writable

if TYPE_CHECKING:
    from art_trainer.analysis.result_files import EvaluationRecord, PolicyRecord
    from art_trainer.analysis.suites import Suite
    from art_trainer.inference.policy import Policy
    from art_trainer.rollout.envs import MakeEnv
    from art_trainer.types import Episode

_DEFAULT_BATCH = 256
_MOST_FAULTS = 8
"""Episodes of a policy that end with a fault, and none without, before it is given up."""
_LISTED = 5
"""Episodes that ``--verify`` lists."""


@flags.command(
    "eval",
    "`art-trainer eval --policy bm25 --policy art-tiny --compare`.",
    "`art-trainer eval --suite email-v0-test --policy runs/mine --samples 4 --json after.json`.",
    "`art-trainer eval --verify after.json` plays it again and compares.",
    "`art-trainer eval --policy openai:qwen3@http://localhost:8000/v1 --by difficulty`.",
)
def eval_(
    *,
    policy: Sequence[str] = (),
    suite: Annotated[str, flags.Flag(metavar="NAME|FILE.yaml")] | None = None,
    env: flags.EnvId | None = None,
    env_args: flags.EnvArgs = flags.NO_PAIRS,
    split: flags.Split | None = None,
    episodes: flags.Count | None = None,
    samples: flags.Count | None = None,
    temperature: flags.Amount | None = None,
    max_completion_length: flags.Count | None = None,
    seed: flags.Whole | None = None,
    max_batch: flags.Count = _DEFAULT_BATCH,
    device: str | None = None,
    compare: bool = False,
    by: Annotated[str, flags.Flag(metavar="FIELD")] | None = None,
    json_: flags.File | None = None,
    verify: flags.File | None = None,
) -> None:
    """Evaluate policies on the same tasks: success with its interval, reward and its parts, turns, tokens.

    Flags:
        policy: What to evaluate: folder of a run or checkpoint, Hugging Face name or path, openai:MODEL@URL
            (its key from OPENAI_API_KEY), a baseline (or baseline:NAME), or one of `art-trainer models`.
        suite: Play these fixed tasks and seeds; `art-trainer suites` lists the names.
        episodes: Number of episodes. [default: every task of the split once]
        samples: Attempts at each start, for pass@k. [default: 1]
        temperature: Sampling temperature; 0 is greedy. [default: 0]
        max_completion_length: Largest number of tokens in one reply. [default: 256]
        seed: The same seed gives the same tasks and episodes. [default: 0]
        max_batch: Largest number of conversations that a local model holds at once.
        device: Device of a local model, such as cpu or cuda.
        compare: Also print the paired differences: each policy minus the next.
        by: Also group results by a field of the tasks: difficulty.
        json_: Write every result, and how it was made, to this file.
        verify: Repeat the evaluation of a --json file; exit code 1 if results differ.
    """
    given = {name: value for name, value in locals().items() if value != _DEFAULTS[name]}
    if verify is not None:
        if len(given) > 1:
            raise ConfigError("--verify plays what its file says: give no other flag with it")
        verify_results(verify)
        return
    _check_policies(policy, compare)
    if json_ is not None:
        require_writable(json_)
    if device is not None:
        from art_trainer.models.loading import ModelOptions

        ModelOptions(device=device)  # fails before anything is played
    if suite is not None:
        from art_trainer.analysis.suites import load_suite

        fixed = [flags.flag_name(name) for name in _FIXED_BY_SUITE if name in given]
        if fixed:
            raise ConfigError(
                f"{' and '.join(fixed)} cannot be given with --suite, which fixes what is played"
            )
        chosen = load_suite(suite)
    else:
        if env is None:
            env, saved = env_of_policies(policy)
            env_args = {**saved, **env_args}
            given |= {"env": env, "env_args": env_args}
        chosen = make_suite(env, env_args, split=split, episodes=episodes, seed=seed or 0)
    changed = {
        name: given[name] for name in ("samples", "temperature", "max_completion_length") if name in given
    }
    chosen = dataclasses.replace(chosen, **changed)
    record = evaluate_policies(
        chosen, policy, Console(), max_batch=max_batch, device=device, command=command_of(given)
    )
    if json_ is not None:
        record.write(json_)
    print_record(record, Console(), compare=compare, by=by)
    if len(record.policies) < len(policy):
        raise typer.Exit(1)


_DEFAULTS = {name: one.default for name, one in inspect.signature(eval_).parameters.items()}
_FIXED_BY_SUITE = ("env", "env_args", "split", "episodes", "seed")


def command_of(given: Mapping[str, Any]) -> str:
    """The command line that repeats an evaluation but for the policy, by the flags that were given."""
    kept = {name: given[name] for name in given if name not in ("policy", "compare", "by", "json_")}
    return shlex.join(["art-trainer", "eval", *flags.flag_words(kept)])


def _check_policies(policies: Sequence[str], compare: bool) -> None:
    if not policies:
        raise ConfigError("nothing to evaluate: name at least one --policy, such as --policy random")
    if compare and len(policies) < 2:
        raise ConfigError("--compare needs at least two --policy")
    if len(set(policies)) != len(policies):
        raise ConfigError("the same --policy is given twice")


def make_suite(
    env: str, env_args: Mapping[str, Any], *, split: str | None, episodes: int | None, seed: int
) -> Suite:
    """Make the suite that flags describe."""
    from art_trainer.rollout.envs import env_maker, find_env

    with closing(env_maker(env, env_args)()) as made:
        from art_trainer.analysis.suites import Suite, starts_of

        split, starts = starts_of(made, split=split, episodes=episodes, seed=seed)
    return Suite(env=find_env(env).name, starts=starts, env_args=dict(env_args), split=split, seed=seed)


def evaluate_policies(
    suite: Suite,
    policies: Sequence[str],
    console: Console,
    *,
    max_batch: int,
    device: str | None,
    command: str,
) -> EvaluationRecord:
    """Play each policy on a suite; one of which nothing could be played is reported and left out.

    Raises:
        ConfigError: If a policy does not exist, or the tasks have changed.
        EvaluationFailedError: If nothing could be played of any policy.
    """
    from art_trainer.analysis.result_files import EvaluationRecord, made_with
    from art_trainer.analysis.suites import check_task_list
    from art_trainer.rollout.envs import env_maker

    make_env = env_maker(suite.env, suite.env_args)
    suite = dataclasses.replace(suite, task_list_sha256=check_task_list(make_env, suite))
    played, failures = [], []
    for words in policies:
        try:
            one = play_suite(suite, words, make_env, console, max_batch=max_batch, device=device)
        except EvaluationFailedError as failure:
            failures.append(failure)
        else:
            played.append(dataclasses.replace(one, command=f"{command} --policy {shlex.quote(words)}"))
    if not played:
        raise failures[0]
    for one_failure in failures:
        console.print(visible(str(one_failure)), markup=False, style="red", soft_wrap=True)
    return EvaluationRecord(suite, tuple(played), made_with(), max_batch, device)


def play_suite(
    suite: Suite, words: str, make_env: MakeEnv, console: Console, *, max_batch: int, device: str | None
) -> PolicyRecord:
    """Play a policy on a suite, with a progress bar.

    Raises:
        EvaluationFailedError: If its first episodes, or all, ended with a fault.
    """
    from art_trainer.analysis.result_files import PolicyRecord
    from art_trainer.cli.console import episode_bar
    from art_trainer.cli.policies import load_policy
    from art_trainer.rollout.evaluate import evaluate_starts

    policy = load_policy(
        words,
        make_env,
        temperature=suite.temperature,
        max_tokens=suite.max_completion_length,
        max_batch=max_batch,
        device=device,
    )
    files = files_of(words, policy)
    with episode_bar(console, policy.name, suite.episodes) as on_episode, ExitStack() as stack:
        if close := getattr(policy, "close", None):
            stack.callback(close)
        evaluation = evaluate_starts(
            policy,
            make_env,
            suite.rollout_starts(),
            split=suite.split,
            seed=suite.seed,
            samples=suite.samples,
            settings={"env_args": dict(suite.env_args), "temperature": suite.temperature},
            on_episode=stop_at_faults(policy.name, suite.episodes, on_episode),
        )
    return PolicyRecord(name=words, command="", evaluation=evaluation, files=files)


def stop_at_faults(
    name: str, episodes: int, on_episode: Callable[[Episode], None]
) -> Callable[[Episode], None]:
    """Return what is called with each episode; it raises if a fault ended the first ones, or all."""
    faults: list[bool] = []

    def count(episode: Episode) -> None:
        on_episode(episode)
        faults.append(episode.failed)
        if len(faults) == min(_MOST_FAULTS, episodes) and all(faults):
            words = f"{name}: nothing was evaluated, a fault ended its first episodes: {episode.error}"
            raise EvaluationFailedError(words)

    return count


def files_of(words: str, policy: Policy) -> dict[str, str]:
    """The sha256 of the files of a local model by name; empty for a policy without files."""
    from art_trainer.analysis.result_files import model_files
    from art_trainer.inference.scripted_policy import ScriptedPolicy
    from art_trainer.training.run_setup import model_path

    if isinstance(policy, ScriptedPolicy) or words.startswith(("openai:", "vllm:")):
        return {}
    folder = Path(model_path(words))
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(folder), local_files_only=True))
    return model_files(folder)


def print_record(record: EvaluationRecord, console: Console, *, compare: bool, by: str | None) -> None:
    """Print the tables of an evaluation, and with ``compare`` the paired differences."""
    from art_trainer.analysis.evaluation_change import change_between
    from art_trainer.cli.console import comparison_lines, pass_table, results_table, strata_table, terms_table
    from art_trainer.formatting import number
    from art_trainer.rollout.evaluate import compare as compare_evaluations

    rows = [(policy.name, policy.evaluation) for policy in record.policies]
    if record.suite.name:
        typer.echo(f"Suite {record.suite.name}: {record.suite.about}")
    for table in (results_table(rows), pass_table(rows), terms_table(rows)):
        if table is not None:
            console.print(table)
    for name, evaluation in rows:
        if record.metric not in ("success", "reward"):
            typer.echo(f"{record.metric} of {name}: {number(evaluation.measured(record.metric))}")
        fault = next((result.error for result in evaluation.results if result.fault), None)
        if fault is not None:
            told = visible(f"first fault of {name}: {fault}")
            console.print(told, markup=False, style="red", soft_wrap=True)
    if by is not None:
        try:
            console.print(strata_table(rows, by, record.metric))
        except ValueError as error:
            raise ConfigError(f"--by: {error}") from error
    pairs = list(pairwise(rows)) if compare else []
    for line in comparison_lines(*(compare_evaluations(other[1], one[1]) for one, other in pairs)):
        typer.echo(line)
    for (first, mine), (second, theirs) in pairs:
        for line in change_between(theirs, mine).pair_lines():
            typer.echo(f"{first} against {second}: {line}")


# ----------------------------------------------------------------------
# ``--verify``: repeat an evaluation and compare it episode by episode.


def verify_results(file: Path) -> None:
    """Repeat a result file's evaluations; print what is equal, what is not, and what else has changed.

    A local model gets as many CPU threads as it had, since other numbers of threads round sums differently. A
    policy that is not on this machine is named, and the others are played. The exit code is 1 if
    anything differs or is missing.
    """
    from art_trainer.analysis.result_files import made_with, read_record, what_differs
    from art_trainer.analysis.suites import check_task_list
    from art_trainer.rollout.envs import env_maker

    record = read_record(file)
    make_env = env_maker(record.suite.env, record.suite.env_args)
    equal = []
    try:
        check_task_list(make_env, record.suite)
    except ConfigError as error:
        typer.echo(f"The tasks have changed: {error}")
        equal.append(False)
    else:
        threads = record.made_with.get("threads")
        if threads is not None and any(policy.files for policy in record.policies):
            import torch

            torch.set_num_threads(int(threads))
        equal += [_verify_policy(record, policy, make_env) for policy in record.policies]
    changes = what_differs(record.made_with, made_with())
    for line in changes:
        typer.echo(f"changed: {line}")
    if not changes:
        typer.echo("Versions, commit and machine are the same.")
    if not all(equal):
        raise typer.Exit(1)


def _verify_policy(record: EvaluationRecord, policy: PolicyRecord, make_env: MakeEnv) -> bool:
    """Play one policy again, print what came out, and return whether it is the same."""
    from art_trainer.analysis.result_files import differences

    console, options = Console(), {"max_batch": record.max_batch, "device": record.device}
    try:
        again = play_suite(record.suite, policy.name, make_env, console, **options)  # type: ignore[arg-type]
    except (ConfigError, CheckpointError, EvaluationFailedError) as error:
        typer.echo(f"{policy.name}: not played again, {error}")
        return False
    for line in _changed_files(policy.files, again.files):
        typer.echo(f"{policy.name}: {line}")
    try:
        found = differences(policy.evaluation, again.evaluation)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    count = len(policy.evaluation.results)
    how_many = f"{len(found)} of {count} episodes differ." if found else f"all {count} episodes are the same."
    typer.echo(f"{policy.name}: {how_many}")
    for difference in found[:_LISTED]:
        typer.echo(f"  {difference}")
    if len(found) > _LISTED:
        typer.echo(f"  and {len(found) - _LISTED} more")
    return not found


def _changed_files(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Lines about the files of a model that have changed."""
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    weights = [name for name in changed if name.endswith(".safetensors")]
    others = [name for name in changed if name not in weights]
    kinds = (("the weights", weights), ("other files of the model", others))
    return [f"{what} have changed ({', '.join(names)})" for what, names in kinds if names]
