from dataclasses import replace

import pytest

from art_gym.wrappers.judging import Score
from art_trainer.analysis.mixed_groups import (
    NoisyScriptedPolicy,
    mixed_starts,
    play_mixed_groups,
    recorded_groups,
)
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.judge_rewards import RewardMix, with_scores
from art_trainer.tracking.run_dir import RunFolder
from tests.art_trainer.toy_envs import Echo


def played(policies, groups=4, size=4, **options):
    return play_mixed_groups(policies, Echo, mixed_starts(Echo, groups=groups, size=size), **options)


def test_starts_are_different_tasks_drawn_from_the_split():
    starts = mixed_starts(Echo, groups=4, size=2, seed=1)
    tasks = [start.options["task"] for start in starts]
    assert len(set(tasks)) == 4
    assert all(task.startswith("test-") for task in tasks)
    assert tasks != sorted(tasks)
    assert mixed_starts(Echo, groups=4, size=2, seed=1) == starts
    assert mixed_starts(Echo, groups=4, size=2, seed=2) != starts
    more = mixed_starts(Echo, groups=14, size=2, split="train")  # than there are tasks
    assert len({start.options["task"] for start in more}) == 6
    assert len({start.seed for start in more}) == 14


def test_players_take_turns_and_a_group_continues_where_the_last_one_ended():
    ended = []
    policies = [ScriptedPolicy("scripted"), ScriptedPolicy("random"), NoisyScriptedPolicy("scripted", 1)]
    groups = played(policies, on_episode=ended.append)
    assert groups[0].players == ("scripted", "random", "scripted with noise", "scripted")
    assert groups[1].players == ("random", "scripted with noise", "scripted", "random")
    for group in groups:
        for name, episode in zip(group.players, group.group.episodes, strict=True):
            assert episode.success or name != "scripted"
    assert sorted(map(id, ended)) == sorted(id(e) for one in groups for e in one.group.episodes)


def test_the_same_seed_gives_the_same_groups_and_members_differ():
    policies = [ScriptedPolicy("random")]
    first = played(policies, groups=6)
    assert first == played(policies, groups=6)
    assert any(len({e.turns[0].reply for e in one.group.episodes}) > 1 for one in first)


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 1.0, 1.0), (1.0, 0.2, 0.95)])
def test_noise_makes_some_replies_random(noise, least, most):
    noisy = played([NoisyScriptedPolicy("scripted", noise)], groups=6, size=8)
    assert least <= sum(bool(e.success) for one in noisy for e in one.group.episodes) / 48 <= most
    with pytest.raises(ValueError, match="not between 0 and 1"):
        NoisyScriptedPolicy("scripted", 2)


def test_a_player_without_an_action_for_a_state_plays_at_random():
    class Mute(Echo):
        baselines = {"mute": lambda env, rng: {}.__getitem__}  # noqa: RUF012

    groups = play_mixed_groups([NoisyScriptedPolicy("mute", 0.0)], Mute, mixed_starts(Mute, groups=2, size=2))
    assert all(one.group.whole for one in groups)


def test_a_reset_that_fails_once_spoils_its_group_alone():
    class Flaky(Echo):
        resets = 0

        def reset(self, **options):
            Flaky.resets += 1
            if Flaky.resets == 4:
                raise RuntimeError("flaky")
            return super().reset(**options)

    starts = mixed_starts(Flaky, groups=3, size=3)
    groups = play_mixed_groups([ScriptedPolicy("random")], Flaky, starts)
    assert [one.group.whole for one in groups] == [True, False, True]


def record(folder, groups, limit=100):
    RunFolder(folder).write_episodes(3, [one.group for one in groups], limit)


def test_recorded_groups_come_back_with_the_environments_own_reward(tmp_path):
    groups = played([ScriptedPolicy("scripted"), ScriptedPolicy("random")], groups=3)
    mix = RewardMix({"ruler": 1.0})
    judged = [replace(one, group=with_scores(one.group, {"ruler": [Score(0.3)] * 4}, mix)) for one in groups]
    assert judged[0].group.rewards != groups[0].group.rewards
    record(tmp_path, judged)
    found = recorded_groups(tmp_path)
    assert [one.group.rewards for one in found] == [one.group.rewards for one in groups]
    assert found[0].players == ("step-000003",) * 4
    assert found[0].group.episodes[1].turns[0].reply == groups[0].group.episodes[1].turns[0].reply
    assert len(recorded_groups(tmp_path, 2)) == 2


def test_an_attempt_that_was_recorded_alone_has_no_order(tmp_path):
    record(tmp_path, played([ScriptedPolicy("random")], groups=2), limit=5)
    assert [len(one.group.episodes) for one in recorded_groups(tmp_path)] == [4]
    record(tmp_path / "alone", played([ScriptedPolicy("random")], groups=1), limit=1)
    for folder in ("alone", "empty"):
        with pytest.raises(ConfigError, match="no two recorded episodes of one group"):
            recorded_groups(tmp_path / folder)
