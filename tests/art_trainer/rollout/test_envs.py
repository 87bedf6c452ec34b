from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from art_gym import Outcome, TextEnv, tool
from art_trainer.algorithms.advantages import estimate
from art_trainer.config import GRPOConfig
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.envs import state_digest
from art_trainer.rollout.episodes import group_specs, rollout_episodes, rollout_groups
from art_trainer.types import EpisodeSpec
from tests.art_trainer.guess import GuessEnv


def _wanderer(env: Any, rng: np.random.Generator) -> Any:
    return lambda observation: f'go("{rng.choice(["left", "right"])}")'


class House(TextEnv):
    """Rooms in a ring; all rooms look alike, and a key is found in one of them."""

    baselines = {"wanderer": _wanderer}  # noqa: RUF012

    def begin(self, task: Any) -> str:
        self.room, self.has_key, self.seen = 0, False, ["hall"]
        return "A room."

    @tool
    def go(self, way: str) -> Outcome:
        """Go to the next room.

        Args:
            way: left or right.
        """
        self.room = (self.room + (1 if way == "right" else -1)) % 4
        self.has_key = self.has_key or self.room == 2
        return Outcome("A room.", {"key": float(self.has_key)})


def house(*ways: str) -> House:
    env = House(max_turns=8)
    env.reset(seed=0)
    for way in ways:
        env.step(f'go("{way}")')
    return env


def test_the_same_place_has_the_same_digest_whenever_and_however_it_was_reached() -> None:
    assert state_digest(house()) == state_digest(house("left", "right"))
    assert state_digest(house("left")) == state_digest(house("right", "left", "left"))


def test_states_that_look_alike_but_are_not_have_digests_of_their_own() -> None:
    digests = {state_digest(house(*"right ".split() * count)) for count in range(5)}
    # After four rooms one is back at the start, now with the key.
    assert len(digests) == 5


def test_equal_values_have_equal_digests_whether_or_not_they_are_one_object() -> None:
    one, two = house(), house()
    name = "".join(["ha", "ll"])
    one.seen = [name, name]
    two.seen = ["".join(["ha", "ll"]), "".join(["hal", "l"])]
    assert state_digest(one) == state_digest(two)


def test_a_state_that_holds_itself_has_a_digest_too() -> None:
    env, same = house(), house()
    for one in (env, same):
        ring: list[Any] = []
        ring.append(ring)
        one.seen = ring
    assert state_digest(env) is not None
    assert state_digest(env) == state_digest(same)


def test_the_random_generator_is_part_of_the_state() -> None:
    env = house()
    before = state_digest(env)
    env.np_random.random()
    assert state_digest(env) != before


def test_an_environment_without_snapshots_has_no_digest() -> None:
    env = GuessEnv()
    env.reset(seed=0)
    assert state_digest(env) is None


def test_a_rollout_notes_states_where_it_is_asked_to() -> None:
    starts = [EpisodeSpec(seed=0, rng_seed=n) for n in range(6)]
    policy = ScriptedPolicy("wanderer")
    noted = rollout_episodes(policy, House, starts, record_states=True)
    first = state_digest(house())
    for episode in noted:
        assert episode.turns[0].state == first
        assert all(turn.state is not None for turn in episode.turns)
    places = {turn.state for episode in noted for turn in episode.turns}
    assert 4 <= len(places) <= 8  # four rooms, with and without the key
    assert all(turn.state is None for e in rollout_episodes(policy, House, starts) for turn in e.turns)


def test_without_noted_states_turns_are_told_apart_by_what_they_answered() -> None:
    (episode,) = rollout_episodes(ScriptedPolicy("wanderer"), House, [EpisodeSpec(seed=0)])
    shown = [episode.observation, *(turn.observation for turn in episode.turns[:-1])]
    assert list(episode.states) == shown


def test_gigpo_compares_turns_in_equal_rooms_of_a_played_group() -> None:
    (group,) = rollout_groups(ScriptedPolicy("wanderer"), House, group_specs([0], 4), record_states=True)
    settings = GRPOConfig(advantage_estimator="gigpo", step_advantage_weight=1.0)
    (found,) = estimate([group], settings)
    attempts = np.asarray(group.rewards) - np.mean(group.rewards)
    by_state: dict[str, list[float]] = {}
    for episode, values, whole in zip(group.episodes, found, attempts, strict=True):
        for state, value in zip(episode.states, values, strict=True):
            by_state.setdefault(state, []).append(float(value - whole))
    assert max(map(len, by_state.values())) > 4  # rooms are met again and again
    assert all(sum(values) == pytest.approx(0, abs=1e-9) for values in by_state.values())
    assert any(np.any(values) for values in by_state.values())
