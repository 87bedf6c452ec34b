"""``RulerReward`` on a group that is a PettingZoo ``ParallelEnv``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art_gym.errors import ResetNeededError
from art_gym.games.seats import text_of
from art_gym.wrappers.ruler_scoring import WAITING, GroupScorer, GroupTracker, Transition

try:
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
    from pettingzoo.utils import BaseParallelWrapper  # type: ignore[import-untyped]
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'RulerReward on a group needs PettingZoo, which is not installed: pip install "art-gym[pettingzoo]"',
        name=missing.name,
    ) from missing


class RulerGroupReward(BaseParallelWrapper):  # type: ignore[misc]  # PettingZoo has no type hints
    """Pays every agent of a group the score that a judge gives its attempt against the others.

    See :func:`art_gym.wrappers.ruler_reward.RulerReward` for the rewards and their time.

    Raises:
        TypeError: If an agent's observations are not ``{"text": …}``.
    """

    def __init__(self, env: ParallelEnv, scoring: GroupScorer) -> None:
        super().__init__(env)
        for name in env.possible_agents:
            space = env.observation_space(name)
            if {"text": WAITING} not in space:
                raise TypeError(f'a judge reads texts: observations must be {{"text": …}}, those are {space}')
        self.scoring = scoring
        self.agents: list[str] = []
        self._group = GroupTracker(scoring, env.possible_agents)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the group."""
        self.agents = []
        observations, infos = self.env.reset(seed=seed, options=options)
        self._group.begin({name: (text_of(observations[name]), infos[name]) for name in self._group.names})
        self.agents = list(self._group.names)
        return observations, infos

    def step(
        self, actions: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """Let the attempts that have not ended reply; when the last has ended, all end, each with its score.

        Args:
            actions: The whole reply of each agent; what an agent that waits replies is dropped.
        """
        if not self.agents:
            raise ResetNeededError("call reset() first: no group is running")
        group = self._group
        live = {name: reply for name, reply in actions.items() if not group.waits(name)}
        shown = {name: group.wait(name) for name in group.names if group.waits(name)}
        steps = self.env.step(live)
        for name in steps[0]:
            observation, *rest = (part[name] for part in steps)
            shown[name] = group.record(name, live[name], Transition(text_of(observation), *rest))
        if group.over:
            self.agents = []
            shown = group.pay(self.scoring.verdicts([group.attempts()])[0])
        ordered = {name: shown[name] for name in group.names}
        return (
            {name: {"text": seen.observation} for name, seen in ordered.items()},
            {name: seen.reward for name, seen in ordered.items()},
            {name: seen.terminated for name, seen in ordered.items()},
            {name: seen.truncated for name, seen in ordered.items()},
            {name: seen.info for name, seen in ordered.items()},
        )
