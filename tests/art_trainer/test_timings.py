"""How long turns took is known beside the episodes, also after their rewards were rewritten."""

from __future__ import annotations

import copy
import dataclasses
import time

from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.types import Group, Timings
from tests.art_trainer.guess import GuessEnv, guess_policy


class SlowGuessEnv(GuessEnv):
    def step(self, action):
        time.sleep(0.003)
        return super().step(action)


def test_every_turn_of_every_episode_is_timed():
    timings = Timings()
    before = time.time()
    groups = rollout_groups(
        guess_policy(0, hidden=16), SlowGuessEnv, group_specs(range(2), 3), timings=timings
    )
    found = timings.of(groups)
    episodes = [episode for group in groups for episode in group.episodes]
    for timing, episode in zip(found, episodes, strict=True):
        assert timing is not None
        assert before <= timing.started <= time.time()
        assert len(timing.turns) == len(episode.turns)
        assert all(turn.action_seconds >= 0.003 for turn in timing.turns)
        assert all(turn.reply_seconds > 0 for turn in timing.turns)


def test_a_rewritten_reward_keeps_its_timing_and_others_have_none():
    timings = Timings()
    groups = rollout_groups(guess_policy(0, hidden=16), GuessEnv, group_specs(range(1), 2), timings=timings)
    turns = tuple(dataclasses.replace(turn, reward=9.0) for turn in groups[0].episodes[0].turns)
    judged = Group(tuple(dataclasses.replace(e, turns=turns) for e in groups[0].episodes))
    assert timings.of([judged]) == timings.of(groups)
    elsewhere = Group(tuple(copy.deepcopy(groups[0].episodes)))
    assert timings.of([elsewhere]) == (None, None)
    timings.clear()
    assert timings.of(groups) == (None, None)
