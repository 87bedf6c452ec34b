"""RULER as a reward function of TRL's: a judge compares the attempts of a group.

TRL calls a reward function with the whole batch and expects a number for each row; ``None`` leaves a row out
of the update.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, get_args

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging import (
    Attempt,
    Judge,
    JudgeFailedError,
    JudgingError,
    Rubric,
    Score,
    Step,
    judge_group,
)
from art_trainer.trl.dataset import Messages
from art_trainer.trl.environments import ToolEnvironment

OnFailure = Literal["nan", "raise"]
"""What happens to a group that the judge fails on."""

_MOST_THREADS = 8


class RulerFunction:
    """A judge as a reward function of TRL's; see :func:`ruler_reward`.

    Attributes:
        judged: How many groups the judge scored.
        failures: How many it failed on, by reason.
    """

    __name__ = "ruler"

    def __init__(self, judge: Judge, rubric: Rubric | None, on_failure: OnFailure) -> None:
        if not callable(judge):
            raise TypeError(f"a judge is called with a group and a rubric, {judge!r} cannot be called")
        if on_failure not in get_args(OnFailure):
            raise JudgingError(f"no on_failure `{on_failure}`{did_you_mean(on_failure, get_args(OnFailure))}")
        self._judge, self._rubric, self._on_failure = judge, rubric, on_failure
        self.judged = 0
        self.failures: Counter[str] = Counter()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Score a batch.

        Args:
            prompts: One a row; rows of equal prompt, seed and task are a group.
            completions: One a row.
            columns: The episodes, in ``environments`` (from ``environment_factory``); without them the
                messages are judged.

        Returns:
            A score from 0 to 1 for each row, ``None`` if the episode or the judge failed.
        """
        attempts = _attempts(prompts, completions, columns)
        groups: dict[str, dict[int, Attempt]] = {}
        for row, attempt in enumerate(attempts):
            if attempt is not None:
                shared = [columns[name][row] for name in ("seed", "task", "env") if name in columns]
                key = json.dumps([prompts[row], *shared], sort_keys=True, default=str)
                group = groups.setdefault(key, {})
                group[row] = replace(attempt, id=f"attempt_{len(group)}")
        scores: list[float | None] = [None] * len(attempts)
        explanations: list[str | None] = [None] * len(attempts)
        with ThreadPoolExecutor(_MOST_THREADS) as threads:
            verdicts = list(threads.map(self._verdict, groups.values()))
        failed = [verdict for verdict in verdicts if isinstance(verdict, JudgeFailedError)]
        self.failures.update(failure.reason for failure in failed)
        self.judged += len(verdicts) - len(failed)
        if failed and self._on_failure == "raise":
            raise failed[0]
        for group, verdict in zip(groups.values(), verdicts, strict=True):
            if isinstance(verdict, JudgeFailedError):
                continue
            for row, attempt in group.items():
                score = verdict[attempt.id]
                scores[row], explanations[row] = float(score.value), score.explanation
        # Loggers that TRL passes to reward functions, if it does.
        if "log_metric" in columns:
            columns["log_metric"]("ruler/failed_groups", len(failed) / max(len(groups), 1))
        if "log_extra" in columns:
            columns["log_extra"]("ruler_explanation", explanations)
        return scores

    def _verdict(self, group: Mapping[int, Attempt]) -> Mapping[str, Score] | JudgeFailedError:
        try:
            return judge_group(self._judge, list(group.values()), self._rubric)
        except JudgeFailedError as failure:
            return failure


def ruler_reward(
    judge: Judge, rubric: Rubric | None = None, *, on_failure: OnFailure = "nan"
) -> RulerFunction:
    """Return a reward function for TRL in which a judge compares the attempts of each group.

    Each group is judged once, several groups at the same time. An attempt whose environment failed is not
    shown to the judge. With several processes each one has its own rows only: let a process hold whole groups
    (``per_device_train_batch_size`` a multiple of ``num_generations``). To mix the scores with the
    environment's reward, give TRL both reward functions and its ``reward_weights``.

    Args:
        judge: Scores a group, such as an ``LLMJudge`` or a ``RubricJudge``.
        rubric: What to look for; ``None``: the judge's own.
        on_failure: ``"nan"`` leaves a group out of the update if the judge failed on it, ``"raise"`` stops.

    Raises:
        JudgingError: For an unknown ``on_failure``.
        TypeError: If the judge cannot be called.
    """
    return RulerFunction(judge, rubric, on_failure)


def _attempts(
    prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[Attempt | None]:
    """Return the attempt of each row, without an id yet; ``None`` if it failed."""
    environments = columns.get("environments") or [None] * len(prompts)
    return [
        _with_last_message(environment._attempt(), completion)
        if isinstance(environment, ToolEnvironment)
        else Attempt("", _text(prompt), _steps(completion))
        for prompt, completion, environment in zip(prompts, completions, environments, strict=True)
    ]


def _with_last_message(attempt: Attempt | None, completion: Messages) -> Attempt | None:
    """Add the model's last message, if it was no tool call and so did not reach the environment."""
    if attempt is None or not completion or attempt.ending != "unfinished":
        return attempt
    last = completion[-1]
    text = str(last.get("content") or "")
    if last["role"] != "assistant" or last.get("tool_calls") or not text.strip():
        return attempt
    return replace(attempt, steps=(*attempt.steps, Step(text, "")))


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(str(m["content"]) for m in prompt)


def _steps(completion: Any) -> tuple[Step, ...]:
    """Return the turns of a completion: each reply with the answers to it."""
    if isinstance(completion, str):
        return (Step(completion, ""),)
    turns: list[tuple[str, list[str]]] = []
    for message in completion:
        if message["role"] == "assistant":
            calls = [json.dumps(call["function"], default=str) for call in message.get("tool_calls") or ()]
            turns.append(("\n".join(filter(None, [str(message.get("content") or ""), *calls])), []))
        elif turns:
            turns[-1][1].append(str(message["content"]))
    return tuple(Step(reply, "\n".join(answers)) for reply, answers in turns)
