"""Is an environment worth training on? What the contract does not say: what it pays for, and whom.

Scripted players, replies without sense and a search over attacks play episodes. Each finding has its
evidence, and what to change. Ids are those of OpenEnv's RFC 008 ("Environment auto-validation") where it has
one of that meaning; a rule of the contract is ``contract.NAME``.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import gymnasium as gym
import numpy as np

from art_gym.baselines import Baseline, noisy, play_on, players
from art_gym.env import truncate
from art_gym.testing.attacks import attacks
from art_gym.testing.checker import ADVICE, check_results
from art_gym.testing.degenerate import degenerate_policies
from art_gym.testing.split_overlap import Texts, split_overlap, tokens
from art_gym.tools import Tool

_STANDARD = frozenset({"task_id", "turn", "tools", "system", "error", "call", "score_terms"})
"""Keys of ``info`` before the end of an episode, none of which may hold the answer."""
_CONSTANT = 0.5
"""A policy that succeeds so often is no alarm: always one answer of two is right in half of the tasks."""
_TOLERATED = 0.1
"""Who succeeds less often than this may do better by not trying, so that turns may cost a little."""
_LABEL = (
    r"(?:answer|expected|solution|gold|correct|target|secret|hidden)\w*\W{1,4}(?:(?:is|was|value)\W+){0,2}"
)


class Level(enum.StrEnum):
    """What is looked at, in the order in which it is."""

    CONTRACT = "contract"
    BEHAVIOUR = "behaviour"
    LEARNABILITY = "learnability"
    ADVERSARIAL = "adversarial"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    id: str
    level: Level
    passed: bool | None
    """``None`` if it cannot be known, and the evidence says why."""
    evidence: str
    change: str = ""
    """What to change if it did not pass."""
    policy: str = ""
    """The policy that the evidence is about, if it is one of :func:`policies`."""


@dataclass(frozen=True, slots=True)
class Played:
    """One episode of a policy."""

    task: str
    reward: float
    success: bool
    turns: int
    leak: str
    said: str
    """The last reply."""


def policies(env: gym.Env[Any, Any]) -> dict[str, Baseline]:
    """All policies that play, by the names that findings give them."""
    return {**players(env), **degenerate_policies(env.unwrapped), **dict(attacks(env.unwrapped))}


class Survey:
    """An environment, and the episodes that its checks look at; each policy's are played once.

    Args:
        env: The environment, wrappers and all.
        episodes: Episodes of each policy, fewer if they take more than ``seconds``.
        seconds: The longest that one policy plays.
    """

    def __init__(self, env: gym.Env[Any, Any], episodes: int = 48, seconds: float = 10.0) -> None:
        self.env, self.bare, self.episodes, self.seconds = env, env.unwrapped, episodes, seconds
        self.played: dict[str, list[Played]] = {}
        """What each policy played so far, by its name."""

    @cached_property
    def players(self) -> dict[str, Baseline]:
        """The scripted players."""
        return players(self.env)

    def play(self, name: str, policy: Baseline) -> list[Played]:
        """A policy's episodes, with seeds from 0 on: four, and more while there is time."""
        if name not in self.played:
            until = time.monotonic() + self.seconds
            self.played[name] = [
                self._episode(policy, seed, 0)
                for seed in range(self.episodes)
                if seed < 4 or time.monotonic() < until
            ]
        return self.played[name]

    def group(self, policy: Baseline, seed: int, size: int = 8) -> list[Played]:
        """Attempts at one task, from one start."""
        return [self._episode(policy, seed, attempt) for attempt in range(size)]

    def scripted(self) -> dict[str, list[Played]]:
        """The episodes of all scripted players."""
        return {name: self.play(name, policy) for name, policy in self.players.items()}

    def best(self) -> tuple[str, float]:
        """The scripted player that succeeds most often, and how often."""
        shares = {name: success(played) for name, played in self.scripted().items()}
        return max(shares.items(), key=lambda item: item[1])

    @cached_property
    def told(self) -> tuple[list[bool], list[bool]]:
        """For each episode that names what was expected, whether that and earlier answers are accepted."""
        ends = [tool for tool in getattr(self.bare, "tools", {}).values() if tool.ends and tool.parameters]
        right, wrong, earlier = list[bool](), list[bool](), list[str | int | float]()
        for seed in range(self.episodes if ends else 0):
            self.env.reset(seed=seed)
            if leaves := list(_leaves(truncate(self.env)["facts"].get("expected"))):
                others = [leaf for leaf in earlier if leaf not in leaves][-3:]
                right.append(self._accepts(ends, leaves, seed))
                wrong.append(self._accepts(ends, others, seed))
                earlier += leaves
        return right, wrong

    def _accepts(self, ends: list[Tool], answers: list[Any], seed: int) -> bool:
        """Whether a call that ends the episode succeeds with one of these answers."""
        accepted = False
        for tool, answer in itertools.product(ends, answers):
            self.env.reset(seed=seed)
            *_, info = self.env.step(tool.example(**{tool.parameters[0].name: answer}))
            accepted = accepted or bool(info.get("success"))
        return accepted

    def _episode(self, policy: Baseline, seed: int, attempt: int) -> Played:
        observation, info = self.env.reset(seed=seed)
        act = policy(self.bare, np.random.default_rng((seed, attempt)))
        shown, extra = [(observation.removeprefix(info.get("system", "")), "")], [_extra(info)]
        total, turns = 0.0, 0
        for reply, seen, reward, terminated, truncated, info in play_on(self.env, act, observation):
            total, turns = total + reward, turns + 1
            if not (terminated or truncated) and len(shown) < 20:
                extra.append(_extra(info))
                if "error" in info:
                    shown.append((seen, reply))
        leak = _leak(info.get("facts", {}).get("expected"), shown, " ".join(extra))
        return Played(str(info.get("task_id", "")), total, bool(info.get("success")), turns, leak, reply)


def success(played: Iterable[Played]) -> float:
    """The share of episodes that succeeded."""
    return float(np.mean([one.success for one in played]))


def mean_reward(played: Iterable[Played]) -> float:
    """The mean return."""
    return float(np.mean([one.reward for one in played]))


def _extra(info: Mapping[str, Any]) -> str:
    more = {key: value for key, value in info.items() if key not in _STANDARD}
    return json.dumps(more, ensure_ascii=False, default=str)


def _leak(expected: Any, shown: list[tuple[str, str]], extra: str) -> str:
    """Where the right answer stood before the end; empty if nowhere."""
    for value in map(str, _leaves(expected)):
        whole = rf"(?<!\w){re.escape(value)}(?!\w)"
        if len(value) > 2 and re.search(whole, extra):
            return f"info has {value!r}, which is expected"
        for place, (text, reply) in enumerate(shown):
            if found := re.search(_LABEL + whole, text, re.IGNORECASE):
                return f"the observation has {found.group()!r}"
            known = value in reply or any(value in earlier for earlier, _ in shown[:place])
            if place and len(value) > 2 and not known and re.search(whole, text):
                return f"an error message has {value!r}, which is expected"
    return ""


def _leaves(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
        yield value


# ----------------------------------------------------------------------
# The checks: each yields findings.

Check = Callable[[Survey], Iterator[Finding]]


def certify(survey: Survey, levels: Iterable[Level] = tuple(Level)) -> Iterator[Finding]:
    """Carry out the checks of some levels, the cheap ones first, and yield what each found.

    A check that meets an error of the environment gives a finding that did not pass. Training is not among
    them, see ``art-gym certify``.
    """
    for level in Level:
        for check in CHECKS[level] if level in levels else ():
            name = f"{level}.{check.__name__.strip('_')}"
            if check not in (_contract, _tasks) and "random" not in survey.players:
                yield Finding(name, level, None, "there are no baselines['random'] to play")
                continue
            try:
                yield from check(survey)
            except Exception as error:  # an author's environment may raise anything
                seen = f"the check met an error: {type(error).__name__}: {error}"
                yield Finding(name, level, False, seen, "Mend the error.")


def _contract(survey: Survey) -> Iterator[Finding]:
    for result in check_results(survey.env):
        passed = None if result.rule in ADVICE and not result.passed else result.passed
        name = f"contract.{result.rule.name.lower()}"
        yield Finding(name, Level.CONTRACT, passed, result.detail or str(result.rule), str(result.rule))


def _tasks(survey: Survey) -> Iterator[Finding]:
    name, level = "runtime.task_declaration_accuracy", Level.BEHAVIOUR
    if not hasattr(survey.bare, "tasks"):
        yield Finding(name, level, None, "it declares no tasks")
        return
    until, texts = time.monotonic() + survey.seconds, dict[str, dict[str, tuple[str, ...]]]()
    tasks = list(survey.bare.tasks)
    for number in np.random.default_rng(0).permutation(len(tasks)):
        if time.monotonic() > until:
            break
        task = tasks[number]
        observation, info = survey.env.reset(seed=int(number), options={"task": task.id})
        texts.setdefault(task.split, {})[task.id] = tokens(observation.removeprefix(info.get("system", "")))
    started = sum(map(len, texts.values()))
    yield Finding(name, level, True, f"{started:,} of {len(tasks):,} tasks started")
    yield from _overlap(texts)


def _overlap(texts: Mapping[str, Texts]) -> Iterator[Finding]:
    train, level = texts.get("train", {}), Level.BEHAVIOUR
    change = "Give the splits different tasks: what is trained on must not be evaluated on."
    for split, tasks in texts.items():
        if split == "train" or len(train) < 10 or len(tasks) < 10:
            continue
        duplicates, near = split_overlap(train, tasks)
        for name, pairs, fails in (("split_overlap", duplicates, False), ("near_duplicates", near, None)):
            what = "the text" if pairs is duplicates else "rare words"
            seen = f"{len(pairs)} of {len(tasks)} tasks of {split} have {what} of a training task"
            seen += next((f", such as {task} of {other}" for task, other in pairs.items()), "")
            yield Finding(f"tasks.{name}", level, len(pairs) <= 0.05 * len(tasks) or fails, seen, change)


def _rewards(survey: Survey) -> Iterator[Finding]:
    played = [one for episodes in survey.scripted().values() for one in episodes]
    finite = all(math.isfinite(one.reward) for one in played)
    returns = [one.reward for one in played]
    bounds = f"returns from {min(returns):.3g} to {max(returns):.3g}"
    level, change = Level.BEHAVIOUR, "Pay finite rewards."
    yield Finding("runtime.reward_well_formed", level, finite, bounds, change)
    good = [one.reward for one in played if one.success]
    bad = [one.reward for one in played if not one.success]
    if not good or not bad:
        yield Finding("reward.success_pays", level, None, "no player both succeeded and failed")
        return
    usual, high = float(np.median(good)), float(np.quantile(bad, 0.95))
    seen = f"median return with success {usual:.3g}; without, 95% are at most {high:.3g}"
    yield Finding("reward.success_pays", level, usual > high, seen, "Pay success more than any failure.")


def _oracle(survey: Survey) -> Iterator[Finding]:
    level, (name, share) = Level.BEHAVIOUR, survey.best()
    seen = f"{name} solves {share:.0%} of {len(survey.scripted()[name])} episodes"
    right, wrong = survey.told
    accepted = float(np.mean(right)) if right else 0.0
    if right:
        seen += f"; what facts name as expected is accepted in {accepted:.0%} of {len(right)}"
    passed = True if max(share, accepted) >= 0.95 else False if accepted >= 0.5 else None
    change = "The grader refuses right answers: give the expected answer in these tasks."
    yield Finding("semantic.oracle_max", level, passed, seen, change)
    if wrong:
        seen = f"what was expected in earlier tasks is accepted in {np.mean(wrong):.0%} of {len(wrong)}"
        change = "Grade by this task's own answer."
        yield Finding("semantic.wrong_refused", level, bool(np.mean(wrong) <= 0.1), seen, change)
    if name == "random":
        return
    random = mean_reward(survey.scripted()["random"])
    reward = mean_reward(survey.scripted()[name])
    seen = f"{name} earns {reward:.3g} on average, random calls {random:.3g}"
    yield Finding("semantic.floor_gap", level, reward > random, seen, "Pay good play more than random calls.")


def _leaks(survey: Survey) -> Iterator[Finding]:
    """Whether the answer was shown to any policy that played so far, before it ended an episode."""
    if not survey.played:
        yield Finding("semantic.no_solution_leakage", Level.ADVERSARIAL, None, "no policy could play")
        return
    shares = {
        name: float(np.mean([bool(one.leak) for one in played])) for name, played in survey.played.items()
    }
    name = max(shares, key=shares.__getitem__)
    leaks = [one.leak for one in survey.played[name] if one.leak]
    some = f"in {shares[name]:.0%} of the episodes of {name}: {leaks[0]}" if leaks else ""
    seen = some or "no policy was shown the answer"
    change = "Keep the expected answer out of observations, error messages and info until the end."
    good = len(leaks) < 2 or shares[name] < 0.1
    yield Finding("semantic.no_solution_leakage", Level.ADVERSARIAL, good, seen, change, name)


def _cost(survey: Survey) -> Iterator[Finding]:
    """Steps a second, and what is left behind by an episode, after a time to warm up."""
    policy = survey.players["random"]
    spent, steps, episodes, before = 0.0, 0, 0, _held()
    until = time.monotonic() + survey.seconds
    while time.monotonic() < until and episodes < 10_000:
        started = time.perf_counter()
        steps += survey._episode(policy, episodes, 1).turns
        spent, episodes = spent + time.perf_counter() - started, episodes + 1
        if episodes == 50:
            before = _held()
    grown = Counter(_held())
    grown.subtract(before)
    kept = max(0, grown["KiB"]) / max(1, episodes - 50)
    leaks = [name for name in ("threads", "files") if grown[name] > max(2, episodes / 100)]
    bad = leaks or (grown["KiB"] > 16_384 and kept > 4)
    seen = f"{steps / spent:,.0f} steps/s; {episodes:,} episodes added {grown['KiB'] / 1024:.0f} MiB, "
    seen += f"{grown['threads']} threads, {grown['files']} open files"
    change = "Free in close and reset what an episode opened, and compute once what episodes share."
    fast = steps / spent >= 20
    yield Finding("semantic.resource_envelope", Level.BEHAVIOUR, fast and not bad, seen, change)


def _held() -> dict[str, int]:
    """Resident memory, threads and open files of this process; where /proc is missing, threads alone."""
    held = {"threads": threading.active_count(), "KiB": 0, "files": 0}
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        held["KiB"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
        held["files"] = len(os.listdir("/proc/self/fd"))
    return held


def _difficulty(survey: Survey) -> Iterator[Finding]:
    level, solved = Level.LEARNABILITY, dict[str, bool]()
    for episodes in survey.scripted().values():
        for one in episodes:
            solved[one.task] = solved.get(one.task, False) or one.success
    share = float(np.mean(list(solved.values()))) if solved else 0.0
    seen = f"{share:.0%} of {len(solved)} tasks that were played were solved by some player"
    change = "Mend the grader, or add easier tasks: without one success there is nothing to learn from."
    means = [mean_reward(episodes) for episodes in survey.scripted().values()]
    graded = min(means) < max(means)  # as a score is: there is something to learn from without a success
    known = share > 0 or (len(means) > 1 and not graded and not any(survey.told[0]))
    yield Finding("statistical.reward_reachability", level, share > 0 if known else None, seen, change)
    share = success(survey.scripted()["random"])
    seen = f"random calls solve {share:.0%} of {len(survey.scripted()['random'])} episodes"
    yield Finding("statistical.headroom", level, share < 0.9, seen, "Add harder tasks.")


def _signal(survey: Survey) -> Iterator[Finding]:
    """Share of groups whose attempts earn different rewards, of random calls and of noisy players."""
    shares, solved, said = dict[str, float](), dict[str, list[float]](), set[str]()
    until = time.monotonic() + 3 * survey.seconds
    for name, player in survey.players.items():
        if time.monotonic() > until:
            break
        policy = player if name == "random" else partial(_noisily, player)
        groups = [survey.group(policy, seed) for seed in range(12) if time.monotonic() < until]
        label = name if policy is player else f"{name} with noise"
        differ = [len({round(one.reward, 9) for one in group}) > 1 for group in groups]
        shares[label], solved[label] = float(np.mean(differ)), [success(group) for group in groups]
        said |= {one.said for group in groups for one in group}
    name = max(shares, key=shares.__getitem__)
    never, always = solved[name].count(0), solved[name].count(1)
    seen = f"attempts at one task differ in reward in {shares[name]:.0%} of the groups of {name}, "
    seen += f"which solves {never} of {len(solved[name])} tasks never and {always} always"
    change = "Pay parts of a solution, or add easier tasks: groups that are all alike teach nothing."
    if len(said) == 1:
        seen = f"no player ever replies anything but {said.pop()!r}: list others in baselines"
    elif len(survey.players) == 1:
        seen += "; nobody else plays"
    good = True if shares[name] >= 0.1 else False if said and len(survey.players) > 1 else None
    yield Finding("statistical.training_signal", Level.LEARNABILITY, good, seen, change)


def _noisily(player: Baseline, env: Any, rng: np.random.Generator) -> Callable[[str], str]:
    return noisy(player(env, rng), env.baselines["random"](env, rng), 0.5, rng)


def _floor(survey: Survey) -> Iterator[Finding]:
    """Policies that do not try must not succeed more often than random calls."""
    yield from _attacked(survey, "semantic.canary_floor", degenerate_policies(survey.bare).items())


def _search(survey: Survey) -> Iterator[Finding]:
    yield from _attacked(survey, "statistical.adversarial_floor", attacks(survey.bare))


def _attacked(survey: Survey, name: str, policies: Iterable[tuple[str, Baseline]]) -> Iterator[Finding]:
    """The policy that succeeds most often without trying, and the one that earns most without success."""
    scripted = survey.scripted()
    every = [one for episodes in scripted.values() for one in episodes]
    good = [one.reward for one in every if one.success]
    tried = [played for played in scripted.values() if any(one.success for one in played)]
    bad = [one.reward for episodes in tried for one in episodes if not one.success]
    bad = bad or [one.reward for one in every if not one.success]
    random = success(scripted["random"])
    until, count = time.monotonic() + 6 * survey.seconds, 0
    most, paid = (random, "random"), (-math.inf, "", 0.0)
    for label, policy in policies:
        if time.monotonic() > until:
            break
        played, count = survey.play(label, policy), count + 1
        most = max(most, (success(played), label), key=lambda item: item[0])
        failed = [one.reward for one in played if not one.success]
        if failed and len(failed) == len(played):
            worst = float(np.mean(bad)) if bad else None
            even = break_even(float(np.mean(good)), worst, float(np.mean(failed))) if good else 0.0
            paid = max(paid, (float(np.mean(failed)), label, even))
    chance = random + 0.1
    allowed = max(_CONSTANT, chance + 3 * math.sqrt(chance * max(0.0, 1 - chance) / survey.episodes))
    seen = f"{count} policies that do not solve the task succeed in at most {most[0]:.0%} of their episodes "
    seen += f"({most[1]}); random calls in {random:.0%}"
    change = "Grade the answer itself, not that it contains something; let every task need its own answer."
    yield Finding(name, Level.ADVERSARIAL, most[0] <= allowed, seen, change, most[1])
    if paid[1]:
        seen = f"the highest reward without success is {paid[0]:.3g} on average ({paid[1]}); "
        seen += f"trying pays more for who succeeds in more than {paid[2]:.0%}"
        change = "Let a failure pay the same however it is reached, at the turn limit too (on_truncation)."
        gap = f"{name}.reward" if name == "semantic.canary_floor" else "statistical.gameability_gap"
        yield Finding(gap, Level.ADVERSARIAL, paid[2] <= _TOLERATED, seen, change, paid[1])


def break_even(succeeded: float, failed: float | None, idle: float) -> float:
    """How often an agent must succeed for trying to pay as much as a policy that earns ``idle``; at most 1.

    Args:
        succeeded: What an attempt earns that succeeds.
        failed: What one earns that does not; ``None`` if unknown, then as much as ``idle``.
        idle: What not trying earns.
    """
    if idle >= succeeded:
        return 1.0
    if failed is None or idle <= failed:
        return 0.0
    return (idle - failed) / (succeeded - failed)


CHECKS: Mapping[Level, tuple[Check, ...]] = {
    Level.CONTRACT: (_contract,),
    Level.BEHAVIOUR: (_tasks, _rewards, _oracle, _cost),
    Level.LEARNABILITY: (_difficulty, _signal),
    Level.ADVERSARIAL: (_floor, _search, _leaks),
}
"""The checks of each level."""
