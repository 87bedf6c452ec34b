"""Makes an attempt from what ``reset`` and ``step`` return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

from art_gym.errors import ResetNeeded
from art_gym.wrappers.judging.attempts import Attempt, Step


class AttemptRecorder:
    """Takes down one attempt at a time, for a judge to read.

    It works with any environment whose observations and actions are text: what its ``info`` lacks is left
    empty in the attempt. An unfinished attempt can be had too; its ending is ``"unfinished"``.
    """

    def __init__(self) -> None:
        self._task: str | None = None
        self._tools: tuple[Mapping[str, Any], ...] = ()
        self._steps: list[Step] = []
        self._ending = "unfinished"
        self._success: bool | None = None
        self._facts: dict[str, Any] = {}

    def begin(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin a new attempt with what ``reset`` returned; the one before it is forgotten."""
        self._task = observation
        self._tools = tuple(info.get("tools") or ())
        self._steps = []
        self._ending, self._success, self._facts = "unfinished", None, {}

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
        """Take down one step: the reply, and what ``step`` returned for it.

        Args:
            reply: The action.
            observation: The first of what ``step`` returned, and so on to ``info``.
            reward: The environment's own reward.
            terminated: Whether the episode ended by itself.
            truncated: Whether it was cut off.
            info: ``call`` or ``error``, and at the end ``success`` and ``facts``, are read.
            seconds: How long the step took, where somebody measured it.

        Raises:
            ResetNeeded: Before :meth:`begin` or after the attempt's end.
        """
        if self._task is None or self.ended:
            raise ResetNeeded("begin() an attempt before adding steps: none is running")
        self._steps.append(
            Step(reply, observation, float(reward), info.get("call"), info.get("error"), seconds)
        )
        if terminated or truncated:
            self._ending = "terminated" if terminated else "truncated"
            success = info.get("success")
            self._success = None if success is None else bool(success)
            self._facts = dict(info.get("facts") or {})

    @property
    def ended(self) -> bool:
        """Whether the attempt has come to its end."""
        return self._ending != "unfinished"

    def attempt(self, id: str) -> Attempt:
        """The attempt so far, named ``id``.

        Raises:
            ResetNeeded: Before :meth:`begin`.
        """
        if self._task is None:
            raise ResetNeeded("begin() an attempt first: there is nothing to judge")
        return Attempt(
            id,
            self._task,
            tuple(self._steps),
            self._tools,
            ending=self._ending,
            success=self._success,
            facts=dict(self._facts),
        )
