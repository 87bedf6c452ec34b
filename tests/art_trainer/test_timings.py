"""How long turns took is known beside the episodes, also after their rewards were rewritten."""

from __future__ import annotations

import copy
import dataclasses

from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.types import Group, Timings
from tests.art_trainer.guess import GuessEnv, guess_policy


def test_every_turn_is_timed_and_a_rewritten_reward_keeps_its_timing():
    timings = Timings()
    groups = rollout_groups(guess_policy(0, hidden=16), GuessEnv, group_specs(range(2), 3), timings=timings)
    found = timings.of(groups)
    episodes = [episode for group in groups for episode in group.episodes]
    for timing, episode in zip(found, episodes, strict=True):
        assert len(timing.turns) == len(episode.turns)
        assert all(turn.action_seconds > 0 for turn in timing.turns)
        assert all(turn.reply_seconds > 0 for turn in timing.turns)
    turns = tuple(dataclasses.replace(turn, reward=9.0) for turn in episodes[0].turns)
    judged = Group(tuple(dataclasses.replace(e, turns=turns) for e in groups[0].episodes))
    assert timings.of([judged]) == found[:3]
    elsewhere = Group(tuple(copy.deepcopy(groups[0].episodes)))
    assert timings.of([elsewhere]) == (None,) * 3
    timings.clear()
    assert timings.of(groups) == (None,) * 6
