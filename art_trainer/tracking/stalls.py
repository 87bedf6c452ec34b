"""Finds runs that cannot learn: steps without a gradient, the likely cause, and what to change.

:class:`StallDetector` is given the metrics of each step. The trainer warns and stops by it, and the
dashboard, ``art-trainer analyze`` and the report give it the lines of ``metrics.jsonl``, so all say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WARN_AFTER, WARN_LATER = 3, 5
"""Steps in a row without a gradient before a warning: of a run that never had one, and of one that had."""
STOP_AFTER = 10
"""Steps in a row without a gradient before the run is stopped."""
SOLVED = 0.9
"""From this success rate on a run that has learned may have no gradient left: its tasks are solved."""
_NEARLY_ALL, _MOST = 0.98, 0.9
_NEEDS_DIFFERENCES = ("group", "leave_one_out")
"""Estimators whose advantages are all zero if the attempts of each group get the same reward."""
_NUMBERS = (
    *("reward", "reward_std", "success", "turns", "invalid_actions", "completions/clipped_ratio"),
    *("cut_off", "frac_reward_zero_std", "failed_groups", "trained_tokens", "grad_norm"),
)
_LONGEST_REPLY = 80

Numbers = Mapping[str, float]
"""Metrics of a step, those that are named above."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Steps in a row in which a run could not learn.

    Attributes:
        name: The cause, such as ``"no_valid_reply"``.
        title: The cause in two or three words.
        first: The first of the steps.
        last: The last of them.
        dead: Whether none of them had a gradient; else the cause alone is reported.
        never_learned: Whether no step before them had a gradient either.
        message: A sentence or two with numbers, the likely cause and what to change.
    """

    name: str
    title: str
    first: int
    last: int
    dead: bool
    never_learned: bool
    message: str


@dataclass(frozen=True, slots=True)
class _Cause:
    """A reason for steps without a gradient.

    ``holds`` gets the newest steps; ``found`` says what was measured, ``remedy`` what to change. Both are
    formatted with the metrics, with ``/`` in a name as ``_``, and the settings.
    """

    title: str
    holds: Callable[[Sequence[Numbers]], bool]
    found: str
    remedy: str


def _all(holds: Callable[[Numbers], bool]) -> Callable[[Sequence[Numbers]], bool]:
    return lambda steps: all(map(holds, steps))


def _nearly_all(name: str) -> Callable[[Sequence[Numbers]], bool]:
    return _all(lambda step: step.get(name, 0.0) >= _NEARLY_ALL)


def _no_group(step: Numbers) -> bool:
    """Whether no group was whole: then nothing is known of how rewards vary."""
    varied = step.get("reward_std") or step.get("frac_reward_zero_std")
    return bool(step.get("failed_groups")) and not varied


_no_differences = _all(lambda step: step.get("frac_reward_zero_std") == 1)
_solved = _all(lambda step: step.get("success", 0.0) >= SOLVED)
_SCRATCH_REMEDY = (
    "A model of random weights writes no calls until it has imitated some: leave --warm-start out or set it "
    "to a scripted policy of the environment, and imitate for longer, --set warm_start_epochs=8. In the "
    "environment, arguments of few values (`Literal[...]`, `int`) make a bare word a call"
)
_NO_CALL_REMEDY = (
    "The model does not write this environment's calls: try a larger or instruction-tuned --model, "
    "--warm-start with a scripted policy, or a plainer example of a call in the environment's `instructions`"
)
_CAUSES: Mapping[str, _Cause] = {
    "all_groups_failed": _Cause(
        "every group failed",
        _all(_no_group),
        "a fault ended an attempt of every group (failed_groups {failed_groups:.0f})",
        "The environment, the judge or a server failed: art-trainer analyze shows the errors",
    ),
    "no_valid_reply": _Cause(
        "no valid reply",
        _nearly_all("invalid_actions"),
        "{invalid_actions:.0%} of replies are no tool call",
        _NO_CALL_REMEDY,
    ),
    "replies_cut_off": _Cause(
        "replies all cut off",
        _nearly_all("completions/clipped_ratio"),
        "{completions_clipped_ratio:.0%} of replies were cut off at max_completion_length "
        "({max_completion_length} tokens)",
        "The model does not come to its end: raise --set max_completion_length, or ask for short replies in "
        "the environment's `instructions`",
    ),
    "episodes_cut_off": _Cause(
        "no episode comes to its end",
        lambda steps: _nearly_all("cut_off")(steps) and _no_differences(steps),
        "{cut_off:.0%} of episodes hit the turn limit or filled the context, after {turns:.1f} turns",
        "What is paid at the end is never reached: allow more turns (--env-args max_turns=N), take easier "
        "tasks, or pay for progress in the environment (the rewards of the `Outcome` that a tool returns)",
    ),
    "already_solved": _Cause(
        "nothing to learn",
        _solved,
        "{success:.0%} of attempts succeed since the first step",
        "The tasks are too easy for this model: take harder ones, with --env-args or in the environment",
    ),
    "reward_never_moves": _Cause(
        "the reward never moves",
        lambda steps: _no_differences(steps) and len({step.get("reward") for step in steps}) == 1,
        "all attempts at a task get the same reward, and its mean is {reward:.3g} in every step",
        "The reward does not depend on what the model does, or needs a success that never happens: look at "
        "the rewards of the `Outcome` that the environment's tools return, pay for progress, or take easier "
        "tasks",
    ),
    "no_difference": _Cause(
        "no group with a difference",
        _no_differences,
        "all attempts at a task get the same reward (frac_reward_zero_std 1, mean reward {reward:.3g})",
        "The attempts are too alike, or the tasks too hard or too easy: raise --set temperature or "
        "--num-generations, take other tasks, or pay for partial success in the environment (the rewards of "
        "the `Outcome` that a tool returns)",
    ),
    "no_gradient": _Cause(
        "no gradient",
        lambda steps: True,
        "rewards differ, but trained_tokens is {trained_tokens:.0f} and grad_norm {grad_norm:.3g}",
        "If mask_truncated_completions leaves out all episodes, raise --set max_completion_length or set "
        "mask_truncated_completions=false",
    ),
    "no_success": _Cause(
        "no success",
        _all(lambda step: step.get("success") == 0 and step.get("frac_reward_zero_std", 0.0) >= _MOST),
        "no attempt succeeds, and in {frac_reward_zero_std:.0%} of groups all get the same reward (mean "
        "{reward:.3g})",
        "The rest teaches at most to avoid invalid calls or to give up: pay for progress in the environment, "
        "let giving up cost as much as a wrong answer, take easier tasks, or --warm-start a policy that "
        "succeeds",
    ),
}
"""The causes, the first that holds is reported; the last is one of steps with a gradient."""


class StallDetector:
    """Counts steps in a row without a gradient, and finds the cause.

    A step has none if no token was trained on, the gradient's norm is zero, or only terms beside the reward
    have one (KL, entropy). Steps whose optimizer steps were skipped count as steps with a gradient.

    A run that had gradients in one of N steps gets N times as many steps: it is slow, but it learns.

    Args:
        settings: The run's settings by name, as in ``run.yaml``.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._first = self._last = self._steps = 0
        self._before = self._with_gradient = 0
        self._newest: list[dict[str, float]] = []

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a step; a line of ``metrics.jsonl`` without an update, as before the first step, is no step."""
        if "trained_tokens" not in metrics:
            return
        self._last = step
        known = {name: metrics.get(name) for name in _NUMBERS}
        numbers = {name: value for name, value in known.items() if isinstance(value, int | float)}
        self._newest = [*self._newest, numbers][-STOP_AFTER:]
        if self._has_gradient(metrics):
            self._before += self._steps + 1
            self._with_gradient += 1
            self._steps = 0
        else:
            self._first = self._first if self._steps else step
            self._steps += 1

    @property
    def must_stop(self) -> bool:
        """Whether so many steps in a row had no gradient that the run should stop."""
        return self._steps >= self.stop_after and self._cause() is not None

    @property
    def stop_after(self) -> int:
        """Steps in a row without a gradient before the run is stopped."""
        return self._patience(STOP_AFTER)

    def _patience(self, steps: int) -> int:
        return math.ceil(steps * self._before / self._with_gradient) if self._with_gradient else steps

    @property
    def _is_dead(self) -> bool:
        return self._steps >= self._patience(WARN_LATER if self._with_gradient else WARN_AFTER)

    def find(self, replies: Sequence[str] = ()) -> Stall | None:
        """What keeps the run from learning now; ``None`` if nothing does.

        Args:
            replies: The first replies without a valid call, which the message quotes.
        """
        name = self._cause()
        if name is None:
            return None
        dead = self._is_dead
        newest = STOP_AFTER if name == "no_success" else WARN_AFTER
        first = self._first if dead else self._last - newest + 1
        since = f"no step from {first} to {self._last} had a gradient" if dead else f"since step {first}"
        never = not self._with_gradient
        message = f"{since}: {self._explain(name, replies)}"
        return Stall(name, _CAUSES[name].title, first, self._last, dead, never, message)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs; JSON-able."""
        return {
            "first": self._first,
            "last": self._last,
            "steps": self._steps,
            "before": self._before,
            "with_gradient": self._with_gradient,
            "newest": self._newest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state` returned; a run that was stopped gets as many steps again."""
        self._first, self._last = int(state["first"]), int(state["last"])
        self._steps, self._newest = int(state["steps"]), [dict(numbers) for numbers in state["newest"]]
        self._before, self._with_gradient = int(state["before"]), int(state["with_gradient"])
        if self._steps >= self.stop_after:
            self._steps, self._newest = 0, []

    def _has_gradient(self, metrics: Mapping[str, float]) -> bool:
        if metrics.get("skipped_updates"):
            return True
        if not metrics["trained_tokens"]:
            return False
        if self._needs_differences and metrics.get("frac_reward_zero_std") == 1:
            return False
        return bool(metrics.get("grad_norm"))

    def _cause(self) -> str | None:
        steps = self._newest[-WARN_AFTER:]
        if len(steps) < WARN_AFTER:
            return None
        if self._is_dead and not (self._with_gradient and _solved(steps)):
            return next(name for name, cause in _CAUSES.items() if cause.holds(steps))
        if _CAUSES["no_valid_reply"].holds(steps):
            return "no_valid_reply"
        is_long = len(self._newest) == STOP_AFTER and self._needs_differences
        return "no_success" if is_long and _CAUSES["no_success"].holds(self._newest) else None

    @property
    def _needs_differences(self) -> bool:
        return self._settings.get("advantage_estimator", "group") in _NEEDS_DIFFERENCES

    def _explain(self, name: str, replies: Sequence[str]) -> str:
        """What was measured, the likely cause and what to change."""
        cause, numbers = _CAUSES[name], self._newest[-1]
        values = {key.replace("/", "_"): numbers.get(key, math.nan) for key in _NUMBERS}
        values["max_completion_length"] = self._settings.get("max_completion_length", "unknown")
        found, remedy = cause.found.format(**values), cause.remedy
        if name == "no_valid_reply":
            if replies:
                texts = (" ".join(reply.split()) for reply in replies)
                quoted = (f"“{t[:_LONGEST_REPLY]}{'…' if len(t) > _LONGEST_REPLY else ''}”" for t in texts)
                found += f": the first {_COUNTS[len(replies) - 1]} {', '.join(quoted)}"
            if self._settings.get("model") == "scratch":
                remedy = _SCRATCH_REMEDY
            elif values["completions_clipped_ratio"] >= _NEARLY_ALL:
                found += f", cut off at max_completion_length ({values['max_completion_length']} tokens)"
                remedy = "Raise --set max_completion_length. If that does not help: " + remedy
        return f"{found}. {remedy}."


_COUNTS = ("was", "two were", "three were")
