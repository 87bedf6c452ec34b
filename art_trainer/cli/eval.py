"""``art-trainer eval``: evaluate policies on the same starts, and compare them."""

from __future__ import annotations

import inspect
import json
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from art_gym.terminal import visible
from art_trainer.cli import options as flags
from art_trainer.cli.run_config import env_of_policies
from art_trainer.errors import ConfigError, EvaluationFailedError
from art_trainer.tracking.run_dir import require_writable, write_text

if TYPE_CHECKING:
    import gymnasium as gym

    from art_trainer.cli.console import Rows
    from art_trainer.inference.policy import Policy
    from art_trainer.rollout.evaluate import Evaluation
    from art_trainer.types import Episode, EpisodeSpec

_MOST_FAULTS = 8
"""Episodes of a policy that end with a fault, and none without, before it is given up."""
_PACKAGES = ("art-gym", "gymnasium", "numpy", "torch", "transformers", "tokenizers", "peft")
_GIT_TIMEOUT = 30  # seconds


@flags.command(
    "eval",
    "`art-trainer eval --policy bm25 --policy art-tiny --compare`.",
    "`art-trainer eval --policy runs/mine --samples 4 --temperature 1 --json after.json`.",
    "`art-trainer eval --policy openai:qwen3@http://localhost:8000/v1 --by difficulty`.",
)
def eval_(
    *,
    policy: Sequence[str] = (),
    env: flags.EnvId | None = None,
    env_args: flags.EnvArgs = flags.NO_PAIRS,
    split: flags.Split | None = None,
    episodes: flags.Count | None = None,
    samples: flags.Count = 1,
    temperature: flags.Amount = 0.0,
    max_completion_length: flags.MaxTokens = 256,
    seed: flags.Whole = 0,
    max_batch: flags.Count = 256,
    device: str | None = None,
    compare: bool = False,
    by: Annotated[str, flags.Flag(metavar="FIELD")] | None = None,
    json_: flags.JsonFile | None = None,
) -> None:
    """Evaluate policies on the same tasks: success with its interval, reward and its parts, turns, tokens.

    Flags:
        policy: What to evaluate: folder of a run or checkpoint, Hugging Face name or path, openai:MODEL@URL
            (its key from OPENAI_API_KEY), a baseline (or baseline:NAME), or one of `art-trainer models`.
        episodes: Number of starts; fewer than tasks play a fixed random part of the split. [default: every
            task of the split once]
        samples: Attempts at each start, for pass@k.
        temperature: Sampling temperature; 0 is greedy.
        seed: The same seed gives the same tasks and episodes.
        max_batch: Largest number of conversations that a local model holds at once.
        device: Device of a local model, such as cpu or cuda.
        compare: Also print the paired differences: each policy minus the next.
        by: Also group results by a field of the tasks: difficulty.
    """
    given = {name: value for name, value in locals().items() if value != _DEFAULTS[name]}
    if not policy:
        raise ConfigError("nothing to evaluate: name at least one --policy, such as --policy random")
    if compare and len(policy) < 2:
        raise ConfigError("--compare needs at least two --policy")
    if len(set(policy)) != len(policy):
        raise ConfigError("the same --policy is given twice")
    if json_ is not None:
        require_writable(json_)
    if device is not None:
        from art_trainer.models.loading import ModelOptions

        ModelOptions(device=device)  # fails before anything is played
    if env is None:
        env, saved = env_of_policies(policy)
        env_args = {**saved, **env_args}
        given |= {"env": env, "env_args": env_args}
    from art_trainer.rollout.envs import env_maker

    make_env = env_maker(env, env_args)
    from art_trainer.cli.policies import load_policy
    from art_trainer.rollout.evaluate import evaluate_starts, evaluation_split, evaluation_starts

    with closing(make_env()) as made:
        split = evaluation_split(made, split)
        starts = evaluation_starts(made, split=split, episodes=episodes, seed=seed, samples=samples)
        if by is not None:
            _check_field(by, env, made, starts)
    load = partial(
        load_policy,
        make_env=make_env,
        temperature=temperature,
        max_tokens=max_completion_length,
        max_batch=max_batch,
        device=device,
    )
    play = partial(
        evaluate_starts,
        make_env=make_env,
        starts=starts,
        split=split,
        seed=seed,
        samples=samples,
        settings={"env_args": dict(env_args), "temperature": temperature},
    )
    console = Console()
    rows = evaluate_policies(policy, load, play, len(starts), console)
    if json_ is not None:
        played = [{"policy": name, "evaluation": evaluation.to_json()} for name, evaluation in rows]
        record = {"command": command_of(given), "made_with": made_with(), "policies": played}
        write_text(json_, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    print_results(rows, console, compare=compare, by=by)
    if len(rows) < len(policy):
        raise typer.Exit(1)


_DEFAULTS = {name: one.default for name, one in inspect.signature(eval_).parameters.items()}


def _check_field(by: str, env: str, made: gym.Env[str, str], starts: Sequence[EpisodeSpec]) -> None:
    """Raise before anything is played if no task has this field."""
    from art_trainer.rollout.evaluate import require_field, task_fields

    ids = [start.options["task"] for start in starts if start.options]
    try:
        require_field(env, task_fields(getattr(made.unwrapped, "tasks", None), ids), by)
    except ValueError as error:
        raise ConfigError(f"--by: {error}") from error


def command_of(given: Mapping[str, Any]) -> str:
    """The command line that plays the same episodes, by the flags that were given."""
    kept = {name: given[name] for name in given if name not in ("compare", "by", "json_")}
    return shlex.join(["art-trainer", "eval", *flags.flag_words(kept)])


def evaluate_policies(
    names: Sequence[str],
    load: Callable[[str], Policy],
    play: Callable[..., Evaluation],
    episodes: int,
    console: Console,
) -> Rows:
    """Play each policy, with a progress bar; one of which nothing could be played is reported and left out.

    Args:
        names: The policies as the command line names them.
        load: Loads the policy of a name.
        play: Evaluates a policy; calls ``on_episode`` with each episode.
        episodes: Number of episodes of one policy.
        console: Where progress and faults are shown.

    Raises:
        ConfigError: If a policy does not exist.
        EvaluationFailedError: If nothing could be played of any policy.
    """
    from art_trainer.cli.console import episode_bar

    rows, failures = [], []
    for name in names:
        policy = load(name)
        try:
            with episode_bar(console, policy.name, episodes) as advance, ExitStack() as stack:
                if close := getattr(policy, "close", None):
                    stack.callback(close)
                on_episode = stop_at_faults(policy.name, episodes, advance)
                rows.append((name, play(policy, on_episode=on_episode)))
        except EvaluationFailedError as failure:
            failures.append(failure)
    if not rows:
        raise failures[0]
    for one_failure in failures:
        console.print(Text(visible(str(one_failure)), "red"), soft_wrap=True)
    return rows


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


def print_faults(rows: Rows, console: Console) -> None:
    """Say which evaluations lack episodes that a fault ended, and what the first was."""
    for name, evaluation in rows:
        faults = [str(result.error) for result in evaluation.results if result.fault]
        if faults:
            count = f"{len(faults)} of {len(evaluation.results)} episodes"
            told = visible(f"{name}: a fault ended {count}, which do not count. The first: {faults[0]}")
            console.print(Text(told, "red"), soft_wrap=True)


def print_results(rows: Rows, console: Console, *, compare: bool, by: str | None) -> None:
    """Print the tables of an evaluation, and with ``compare`` the paired differences."""
    from art_trainer.analysis.evaluation_change import change_between
    from art_trainer.cli.console import comparison_lines, pass_table, results_table, strata_table, terms_table
    from art_trainer.rollout.evaluate import compare as compare_evaluations

    for table in (results_table(rows), pass_table(rows), terms_table(rows)):
        if table is not None:
            console.print(table)
    print_faults(rows, console)
    if by is not None:
        console.print(strata_table(rows, by))
    pairs = list(pairwise(rows)) if compare else []
    for line in comparison_lines(*(compare_evaluations(other[1], one[1]) for one, other in pairs)):
        typer.echo(line)
    for (first, mine), (second, theirs) in pairs:
        for line in change_between(theirs, mine).pair_lines():
            typer.echo(f"{first} against {second}: {line}")


def made_with() -> dict[str, Any]:
    """What results depend on besides the command, JSON-able: versions, commit, machine, CPU threads."""
    import torch

    packages = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # art-gym in a checkout that is not installed
            packages[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        "packages": packages,
        "git": git_state(Path(__file__).parents[2]),
        "machine": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def git_state(folder: Path) -> str | None:
    """The commit of a checkout, with ``-dirty`` if tracked files were changed; ``None`` elsewhere."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    if not (folder / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIT_TIMEOUT)
    return done.stdout.strip() or None  # nothing where nothing is committed
