"""``art-trainer eval --verify``: play an evaluation again and compare it episode by episode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer
from rich.console import Console

from art_trainer.commands.evaluating import play_suite
from art_trainer.commands.policies import MakeEnv, env_maker
from art_trainer.errors import CheckpointError, ConfigError
from art_trainer.suites.provenance import made_with, what_differs
from art_trainer.suites.record import EvaluationRecord, PolicyRecord, read_record
from art_trainer.suites.task_list import check_task_list
from art_trainer.suites.verification import differences

_LISTED = 5


def run_verify(file: Path, console: Console) -> None:
    """Play a result file's policies again; print what is equal, what is not, and what else has changed.

    A local model gets as many CPU threads as it had, since sums are rounded otherwise with others. A policy
    that is not here, such as the folder of a run on another machine, is named, and the others are played.

    Raises:
        ConfigError: Where the environment is not there any more.
        RecordError: Where the file is no result.
        typer.Exit: With code 1 where a result, or the tasks, are others, or a policy is not here.
    """
    record = read_record(file)
    make_env = env_maker(record.suite.env, record.suite.env_args)
    try:
        check_task_list(make_env, record.suite)
    except ConfigError as error:
        _say(console, f"The tasks are others: {error}")
        _tell_changes(record, console)
        raise typer.Exit(1) from error
    threads = record.made_with.get("threads")
    if threads is not None and any(policy.files for policy in record.policies):
        import torch

        torch.set_num_threads(int(threads))
    equal = [_verify_policy(record, policy, make_env, console) for policy in record.policies]
    _tell_changes(record, console)
    if not all(equal):
        raise typer.Exit(1)


def _verify_policy(
    record: EvaluationRecord, policy: PolicyRecord, make_env: MakeEnv, console: Console
) -> bool:
    """Play one policy again, say what came out, and return whether it is the same."""
    try:
        again = play_suite(
            record.suite, policy.words, make_env, console, max_batch=record.max_batch, device=record.device
        )
    except (ConfigError, CheckpointError) as error:
        _say(console, f"{policy.words}: not played again, {error}")
        return False
    for line in _other_files(policy.files, again.files):
        _say(console, f"{policy.words}: {line}")
    try:
        found = differences(policy.evaluation, again.evaluation)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    count = len(policy.evaluation.results)
    if not found:
        _say(console, f"{policy.words}: all {count} episodes are the same.")
        return True
    _say(console, f"{policy.words}: {len(found)} of {count} episodes differ.")
    for difference in found[:_LISTED]:
        _say(console, f"  {difference.words}")
    if len(found) > _LISTED:
        _say(console, f"  and {len(found) - _LISTED} more")
    return False


def _other_files(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What of a model's files has changed, in words."""
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    weights = [name for name in changed if name.endswith(".safetensors")]
    lines = [f"the weights are others ({', '.join(weights)})"] if weights else []
    others = [name for name in changed if name not in weights]
    return [*lines, f"other files of the model have changed ({', '.join(others)})"] if others else lines


def _tell_changes(record: EvaluationRecord, console: Console) -> None:
    changes = what_differs(record.made_with, made_with())
    if not changes:
        _say(console, "Versions, commit and machine are the same.")
    for line in changes:
        _say(console, f"changed: {line}")


def _say(console: Console, words: str) -> None:
    console.print(words, markup=False, highlight=False, soft_wrap=True)
