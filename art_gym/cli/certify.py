"""``art-gym certify``: is an environment worth training on?"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from art_gym.cli.common import EnvArgs, EnvId, parse_env_args, user_errors
from art_gym.lookup import find_env, make_env
from art_gym.testing.certificate import Finding, Level, Survey, certify

_SHUFFLED = "art_gym.testing.shuffled_reward:testing/ShuffledReward-v0"

_ASPECTS = {
    Level.CONTRACT: "sound",
    Level.BEHAVIOUR: "sound",
    Level.LEARNABILITY: "learnable",
    Level.ADVERSARIAL: "not hackable",
}
_COST, _FAST = "semantic.resource_envelope", "fast"
"""The words of the verdict, by what is looked at."""
_IMPROVEMENT, _CONTROL = "statistical.improvement", "statistical.shuffled_control"


def certify_command(
    env: EnvId,
    env_args: EnvArgs = None,
    level: Annotated[
        list[Level] | None, typer.Option(help="Look at this only. Repeatable; else at everything.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write verdict and findings here.")
    ] = None,
    badge: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the JSON of a shields.io endpoint badge here.")
    ] = None,
    train: Annotated[
        bool,
        typer.Option("--train/--no-train", help="Train two small models, some minutes, for learnability."),
    ] = True,
) -> None:
    """Tell whether an environment is worth training on: sound, learnable, hackable, slow.

    Checks the contract, lets scripted players, senseless replies and a search over attacks play, and
    trains a small model with the environment's reward and one with shuffled rewards, which must not learn.
    The exit code is 1 if a finding is bad.

    Example: art-gym certify my_env.py --json certificate.json
    """
    levels = tuple(level or Level)
    with user_errors():
        arguments, found = parse_env_args(env_args), find_env(env)
        made = make_env(env, arguments)
    findings, started = list[Finding](), time.monotonic()
    with contextlib.closing(made):
        trained = _training(found.name, arguments, wanted=train) if Level.LEARNABILITY in levels else ()
        for finding in itertools.chain(certify(Survey(made), levels), trained):
            _show(finding, env, env_args or [])
            findings.append(finding)
    verdict = verdict_of(findings)
    print(f"\n{found.id}, in {time.monotonic() - started:.0f} s:")
    words = {True: "yes", False: "NO", None: "not known"}
    for aspect, good in verdict.items():
        wrong = ", ".join(one.id for one in findings if one.passed is False and aspect_of(one) == aspect)
        print(f"  {aspect:13}{words[good]}{f' ({wrong})' if wrong else ''}")
    with user_errors():
        if json_file is not None:
            shown = {"env": found.id, "env_args": arguments, "verdict": verdict}
            rows = [asdict(one) | {"command": _command(one, env, env_args or [])} for one in findings]
            json_file.write_text(json.dumps(shown | {"findings": rows}, indent=1))
        if badge is not None:
            badge.write_text(json.dumps(_badge(verdict)))
    raise typer.Exit(1 if any(one.passed is False for one in findings) else 0)


def aspect_of(finding: Finding) -> str:
    """The word of the verdict that a finding bears on."""
    return _FAST if finding.id == _COST else _ASPECTS[finding.level]


def verdict_of(findings: Sequence[Finding]) -> dict[str, bool | None]:
    """Sum findings up: no if one is bad, not known if nothing could be looked at."""
    verdict: dict[str, bool | None] = {}
    for aspect in dict.fromkeys((*_ASPECTS.values(), _FAST)):
        passed = {one.id: one.passed for one in findings if aspect_of(one) == aspect}
        # Whether it can be learned, only a training shows.
        known = passed.get(_IMPROVEMENT) if aspect == "learnable" else True in passed.values()
        verdict[aspect] = False if False in passed.values() else known or None
    return verdict


def _command(finding: Finding, env: str, env_args: Sequence[str]) -> str:
    """What shows the evidence: an episode of the policy it is about, else the checks of its level."""
    words = ["play" if finding.policy else "certify", env]
    words += [word for given in env_args for word in ("--env-args", given)]
    words += ["--policy", finding.policy] if finding.policy else ["--level", finding.level]
    return shlex.join(["art-gym", *words])


def _show(finding: Finding, env: str, env_args: Sequence[str]) -> None:
    if finding.level is Level.CONTRACT and finding.passed:
        print(f"ok       {finding.evidence}")
        return
    word = {True: "ok", False: "BAD", None: "unknown"}[finding.passed]
    print(f"{word:8} {finding.id}: {finding.evidence}", flush=True)
    if finding.passed is False:
        print(f"         {finding.change} To see it: {_command(finding, env, env_args)}", flush=True)


def _badge(verdict: Mapping[str, bool | None]) -> dict[str, Any]:
    good = [name for name, known in verdict.items() if known]
    colour = "red" if False in verdict.values() else "brightgreen" if len(good) == len(verdict) else "yellow"
    return {"schemaVersion": 1, "label": "art-gym", "message": ", ".join(good) or "nothing", "color": colour}


# ----------------------------------------------------------------------
# Does a model learn it?


def _training(name: str, arguments: Mapping[str, Any], *, wanted: bool) -> Iterator[Finding]:
    """Train a small model and, if it learns, one with shuffled rewards: some minutes each."""
    level = Level.LEARNABILITY
    if not wanted or any(importlib.util.find_spec(module) is None for module in ("torch", "art_trainer")):
        why = "--no-train" if not wanted else 'it needs the trainer: pip install "art-gym[train]"'
        yield Finding(_IMPROVEMENT, level, None, f"no model was trained: {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        run = _trained(name, arguments, Path(folder) / "run")
        if isinstance(run, str):
            yield Finding(_IMPROVEMENT, level, False, f"training ended early: {run}", _NO_LEARNING)
            return
        random, before, after = run
        rise, error = _difference(random, after)
        seen = f"a small model solves {after.mean():.0%} of {len(after)} held-out episodes after training, "
        seen += f"{before.mean():.0%} before GRPO, random calls {random.mean():.0%} "
        seen += f"(difference {100 * rise:+.0f} ± {196 * error:.0f} points)"
        learned = rise > 1.96 * error and rise > 0
        yield Finding(_IMPROVEMENT, level, learned, seen, _NO_LEARNING)
        if not learned:
            return
        control = {"env": name, "env_args": dict(arguments)}
        run = _trained(_SHUFFLED, control, Path(folder) / "control", "--max-steps", "40")
        if isinstance(run, str):
            yield Finding(_CONTROL, level, None, f"training with shuffled rewards ended early: {run}")
            return
        random, before, after = run
        rise, error = _difference(before, after)
        seen = f"by shuffled rewards imitation comes to {before.mean():.0%} and GRPO to {after.mean():.0%} "
        seen += f"(difference {100 * rise:+.0f} ± {196 * error:.0f} points)"
        yield Finding(_CONTROL, level, rise <= 3 * error, seen, "Success does not come from the reward.")


_NO_LEARNING = "docs/guides/it-does-not-learn.md has what to look at, symptom by symptom."


def _trained(name: str, arguments: Mapping[str, Any], folder: Path, *more: str) -> list[np.ndarray] | str:
    """Success of random calls, and of a model before and after GRPO; why not, if the run ended early."""
    words = [sys.executable, "-m", "art_trainer", "train", "--env", name, "--model", "scratch"]
    for key, value in arguments.items():
        words += ["--env-args", f"{key}={json.dumps(value)}"]
    # A penalty of the trainer's would be true beside the control's shuffled rewards.
    words += ["--set", "truncation_penalty=0"]
    words += ["--output-dir", str(folder), "--set", 'baselines=["random"]', *more]
    print(f"training: {' '.join(words[3:])}", flush=True)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith(("warm start", "step ")):
                print(f"         {line}", end="", flush=True)
    if process.returncode:
        return lines[-1].strip() if lines else f"exit code {process.returncode}"
    return [_successes(folder, name) for name in ("baseline-random", "before", "after")]


def _successes(folder: Path, name: str) -> np.ndarray:
    """1 or 0 for each episode of an evaluation."""
    found = json.loads((folder / "evaluations" / f"{name}.json").read_text())
    return np.array([float(one["success"] or False) for one in found["results"]])


def _difference(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """The mean difference on the same episodes, and its standard error."""
    difference = after - before
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))
