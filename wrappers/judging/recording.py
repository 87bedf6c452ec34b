"""Records an attempt from what ``reset`` and ``step`` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, SupportsFloat

from art_gym.errors import ResetNeededError
from art_gym.wrappers.judging.base import Attempt, Step

_UNFINISHED = "unfinished"


class AttemptRecorder:
    """Records one attempt at a time, for a judge.

    It works with any environment whose observations and actions are text: what its ``info`` lacks is left
    empty in the attempt. The ending of an attempt that is still running is ``"unfinished"``.
    """

    def __init__(self) -> None:
        self._attempt: Attempt | None = None

    def begin(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin a new attempt with what ``reset`` returned; the one before it is dropped."""
        self._attempt = Attempt("", observation, (), tuple(info.get("tools") or ()), ending=_UNFINISHED)

    def add(
        self,
        reply: str,
        observation: str,
        reward: SupportsFloat,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        seconds: float | None = None,
    ) -> None:
        """Record one step: the reply, what ``step`` returned, and the seconds it took, if measured.

        Raises:
            ResetNeededError: Before :meth:`begin` or after the attempt's end.
        """
        if self._attempt is None or self.ended:
            raise ResetNeededError("begin() an attempt before adding steps: none is running")
        step = Step(reply, observation, float(reward), info.get("call"), info.get("error"), seconds)
        self._attempt = replace(self._attempt, steps=(*self._attempt.steps, step))
        if terminated or truncated:
            success = info.get("success")
            self._attempt = replace(
                self._attempt,
                ending="terminated" if terminated else "truncated",
                success=None if success is None else bool(success),
                facts=dict(info.get("facts") or {}),
            )

    @property
    def ended(self) -> bool:
        """Whether the attempt is over."""
        return self._attempt is not None and self._attempt.ending != _UNFINISHED

    def attempt(self, id: str) -> Attempt:
        """The attempt so far, named ``id``.

        Raises:
            ResetNeededError: Before :meth:`begin`.
        """
        if self._attempt is None:
            raise ResetNeededError("begin() an attempt first: there is nothing to judge")
        return replace(self._attempt, id=id)
