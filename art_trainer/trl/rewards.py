"""Reward functions for TRL: what the environment paid, and RULER, which compares the members of a group.

TRL hands a reward function the whole batch, row by row, and takes one number a row; ``None`` leaves a row out
of the update.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from art_gym.wrappers.judging import Attempt, Judge, JudgeFailed, Rubric, Step
from art_gym.wrappers.ruler_scoring import OnFailure, Scoring
from art_trainer.judging import attempt_of
from art_trainer.trl.tools import ToolEnvironment, played

Messages = Sequence[Mapping[str, Any]]


def env_reward(env_reward: Sequence[float | None], **columns: Any) -> list[float | None]:
    """What the environment paid; a reward function for TRL beside :class:`~art_trainer.trl.GymRollout`."""
    return list(env_reward)


class RulerFunction:
    """A judge as a reward function of TRL's; :func:`ruler_reward` makes it.

    Attributes:
        scoring: Counts, in ``judged`` and ``failures``, what the judge did.
    """

    __name__ = "ruler"

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Score a batch.

        Args:
            prompts: One a row; rows of equal prompt, seed and task are a group.
            completions: One a row.
            columns: ``episode`` (from :class:`~art_trainer.trl.GymRollout`) or ``environments`` (from
                ``environment_factory``) tell what was played; without them the messages do.

        Returns:
            A score from 0 to 1 for each row, ``None`` where the episode or the judge failed.
        """
        attempts = _attempts(prompts, completions, columns)
        groups: dict[str, list[int]] = {}
        for row, attempt in enumerate(attempts):
            if attempt is not None:
                groups.setdefault(_start(prompts[row], columns, row), []).append(row)
        members = [
            [_named(attempts[row], place) for place, row in enumerate(rows)] for rows in groups.values()
        ]
        scores: list[float | None] = [None] * len(attempts)
        explanations: list[str | None] = [None] * len(attempts)
        failed = 0
        for rows, verdict in zip(
            groups.values(), self.scoring.verdicts(members) if members else (), strict=True
        ):
            if isinstance(verdict, JudgeFailed):
                failed += 1
                continue
            for place, row in enumerate(rows):
                score = verdict[_id(place)]
                scores[row], explanations[row] = float(score.value), score.explanation
        _tell(columns, failed / max(len(groups), 1), explanations)
        return scores


def ruler_reward(
    judge: Judge, rubric: Rubric | None = None, *, on_failure: OnFailure = "nan"
) -> RulerFunction:
    """Return a reward function for TRL that has a judge compare the attempts of each group.

    Each group is judged once, several at the same time, and scores are matched by attempt. An attempt whose
    environment failed is not shown to the judge. A trainer of several processes hands each of them its own
    rows only: let a process hold whole groups (``per_device_train_batch_size`` a multiple of
    ``num_generations``). To mix the scores with what the environment pays, give TRL both reward functions and
    its ``reward_weights``.

    Args:
        judge: Scores a group, such as an ``LLMJudge`` or a ``RubricJudge``.
        rubric: What to look for; ``None``: the judge's own.
        on_failure: ``"nan"`` leaves a group out of the update that the judge failed on, ``"raise"`` stops.

    Raises:
        JudgingError: For an unknown ``on_failure``.
        TypeError: Where the judge cannot be called.
    """
    return RulerFunction(Scoring(judge, rubric, on_failure=on_failure))


def _id(place: int) -> str:
    return f"attempt_{place}"


def _named(attempt: Attempt | None, place: int) -> Attempt:
    assert attempt is not None
    return replace(attempt, id=_id(place))


def _attempts(
    prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[Attempt | None]:
    """What was played, a row each, with no names yet; ``None`` where it failed."""
    if "episode" in columns:
        return [None if episode.failed else attempt_of(episode, "") for episode in columns["episode"]]
    environments = columns.get("environments") or [None] * len(prompts)
    found: list[Attempt | None] = []
    for prompt, completion, environment in zip(prompts, completions, environments, strict=True):
        if isinstance(environment, ToolEnvironment):
            found.append(_with_last_words(played(environment), completion))
        else:
            found.append(Attempt("", _asked(prompt), _said(completion)))
    return found


def _with_last_words(attempt: Attempt | None, completion: Messages) -> Attempt | None:
    """The attempt with what the model said last, where that was no call and so reached no environment."""
    if attempt is None or not completion or attempt.ending != "unfinished":
        return attempt
    last = completion[-1]
    words = str(last.get("content") or "")
    if last["role"] != "assistant" or last.get("tool_calls") or not words.strip():
        return attempt
    steps = (*attempt.steps, Step(words, ""))
    return Attempt(attempt.id, attempt.task, steps, attempt.tools, attempt.ending)


def _asked(prompt: Any) -> str:
    """A prompt as one text."""
    return prompt if isinstance(prompt, str) else "\n\n".join(str(m["content"]) for m in prompt)


def _said(completion: Any) -> tuple[Step, ...]:
    """The turns of a completion: each reply with the answers to it."""
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


def _start(prompt: Any, columns: Mapping[str, Any], row: int) -> str:
    """What the members of a group have in common."""
    shared = [columns[name][row] for name in ("seed", "task", "env") if name in columns]
    return json.dumps([prompt, *shared], sort_keys=True, default=str)


def _tell(columns: Mapping[str, Any], failed: float, explanations: list[str | None]) -> None:
    """Log what the judge said, where TRL takes it."""
    if "log_metric" in columns:
        columns["log_metric"]("ruler/failed_groups", failed)
    if "log_extra" in columns:
        columns["log_extra"]("ruler_explanation", explanations)
