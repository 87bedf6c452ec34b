from __future__ import annotations

from typing import Any

import numpy as np

from art_gym import Outcome, TextEnv, tool
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.envs import state_digest
from art_trainer.rollout.episodes import rollout_episodes
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


def test_equal_states_have_equal_digests_however_they_were_reached() -> None:
    assert state_digest(house()) == state_digest(house("left", "right"))
    assert state_digest(house("left")) == state_digest(house("right", "left", "left"))
    one, two = house(), house()
    name = "".join(["ha", "ll"])
    one.seen = [name, name]  # one object twice; in the other state two that are equal
    two.seen = ["".join(["ha", "ll"]), "".join(["hal", "l"])]
    assert state_digest(one) == state_digest(two)
    for env in (one, two):
        env.seen = []
        env.seen.append(env.seen)  # a state that holds itself
    assert state_digest(one) == state_digest(two) is not None


def test_states_that_look_alike_but_are_not_have_digests_of_their_own() -> None:
    digests = {state_digest(house(*"right ".split() * count)) for count in range(5)}
    # After four rooms one is back at the start, now with the key.
    assert len(digests) == 5
    env = house()
    env.np_random.random()
    assert state_digest(env) != state_digest(house())


def test_an_environment_without_snapshots_has_no_digest() -> None:
    env = GuessEnv()
    env.reset(seed=0)
    assert state_digest(env) is None


def test_a_rollout_notes_states_if_asked_and_otherwise_observations_tell_turns_apart() -> None:
    starts = [EpisodeSpec(seed=0, rng_seed=n) for n in range(6)]
    policy = ScriptedPolicy("wanderer")
    noted = rollout_episodes(policy, House, starts, record_states=True)
    first = state_digest(house())
    for episode in noted:
        assert episode.turns[0].state == first
        assert all(turn.state is not None for turn in episode.turns)
    places = {turn.state for episode in noted for turn in episode.turns}
    assert 4 <= len(places) <= 8  # four rooms, with and without the key
    for episode in rollout_episodes(policy, House, starts):
        assert all(turn.state is None for turn in episode.turns)
        seen = [episode.observation, *(turn.observation for turn in episode.turns[:-1])]
        assert list(episode.states) == seen
