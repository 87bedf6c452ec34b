import json
from dataclasses import replace

import pytest

from art_gym.wrappers.judging import Score
from art_trainer.errors import ConfigError
from art_trainer.judging import RewardMix, with_scores
from art_trainer.mixed_groups import StrayingPolicy, mixed_starts, play_mixed_groups, recorded_groups
from art_trainer.run_log import RunLog
from art_trainer.scripted_policy import ScriptedPolicy
from tests.art_trainer.toy_envs import Echo


def played(policies, groups=4, size=4, **options):
    return play_mixed_groups(policies, Echo, mixed_starts(Echo, groups=groups), size, **options)


class TestStarts:
    def test_are_different_tasks_drawn_from_the_split(self):
        starts = mixed_starts(Echo, groups=4, seed=1)
        tasks = [start.options["task"] for start in starts]
        assert len(set(tasks)) == 4
        assert all(task.startswith("test-") for task in tasks)
        assert tasks != sorted(tasks)
        assert mixed_starts(Echo, groups=4, seed=1) == starts
        assert mixed_starts(Echo, groups=4, seed=2) != starts

    def test_go_around_again_where_there_are_more_groups_than_tasks(self):
        starts = mixed_starts(Echo, groups=14, split="train")
        assert len({start.options["task"] for start in starts}) == 6
        assert len({start.seed for start in starts}) == 14


class TestPlaying:
    def test_players_take_turns_and_a_group_goes_on_where_the_last_one_ended(self):
        groups = played([ScriptedPolicy("scripted"), ScriptedPolicy("random"), StrayingPolicy("scripted", 1)])
        assert groups[0].players == ("scripted", "random", "scripted with noise", "scripted")
        assert groups[1].players == ("random", "scripted with noise", "scripted", "random")
        for group in groups:
            for name, episode in zip(group.players, group.group.episodes, strict=True):
                assert episode.success or name != "scripted"

    def test_the_same_seed_gives_the_same_groups_and_members_differ(self):
        policies = [ScriptedPolicy("random")]
        first = played(policies, groups=6)
        assert first == played(policies, groups=6)
        replies = {tuple(e.turns[0].reply for e in one.group.episodes) for one in first}
        assert any(len(set(one)) > 1 for one in replies)

    def test_every_episode_is_told_of(self):
        told = []
        groups = played([ScriptedPolicy("scripted")], on_episode=told.append)
        assert sorted(map(id, told)) == sorted(id(e) for one in groups for e in one.group.episodes)


class TestNoise:
    def test_0_is_the_player_itself(self):
        quiet = played([StrayingPolicy("scripted", 0.0)], groups=6)
        assert all(episode.success for one in quiet for episode in one.group.episodes)

    def test_some_replies_are_random(self):
        noisy = played([StrayingPolicy("scripted", 1.0)], groups=6, size=8)
        share = sum(bool(e.success) for one in noisy for e in one.group.episodes) / 48
        assert 0.2 < share < 0.95

    def test_a_player_that_has_no_line_for_a_random_situation_goes_on_at_random(self):
        class Mute(Echo):
            baselines = {"mute": lambda env, rng: {}.__getitem__}  # noqa: RUF012

        groups = play_mixed_groups([StrayingPolicy("mute", 0.0)], Mute, mixed_starts(Mute, groups=2), 2)
        assert all(one.group.whole for one in groups)

    def test_is_a_share(self):
        with pytest.raises(ValueError, match="from 0 to 1, got 2"):
            StrayingPolicy("scripted", 2)


class TestRecorded:
    def record(self, folder, groups, step=3, limit=100):
        RunLog(folder).write_episodes(step, [one.group for one in groups], limit)

    def test_groups_come_back_with_the_environments_own_reward(self, tmp_path):
        groups = played([ScriptedPolicy("scripted"), ScriptedPolicy("random")], groups=3)
        mix = RewardMix({"ruler": 1.0})
        judged = [
            replace(one, group=with_scores(one.group, {"ruler": [Score(0.3)] * 4}, mix)) for one in groups
        ]
        assert judged[0].group.rewards != groups[0].group.rewards
        self.record(tmp_path, judged)
        found = recorded_groups(tmp_path)
        assert [one.group.rewards for one in found] == [one.group.rewards for one in groups]
        assert found[0].players == ("step-000003",) * 4
        for one, other in zip(found, groups, strict=True):
            assert [e.turns[0].reply for e in one.group.episodes] == [
                e.turns[0].reply for e in other.group.episodes
            ]

    def test_an_attempt_that_was_recorded_alone_has_no_order(self, tmp_path):
        self.record(tmp_path, played([ScriptedPolicy("random")], groups=2), limit=5)
        assert [len(one.group.episodes) for one in recorded_groups(tmp_path)] == [4]
        self.record(tmp_path / "alone", played([ScriptedPolicy("random")], groups=1), limit=1)
        with pytest.raises(ConfigError, match="no two recorded episodes of one group"):
            recorded_groups(tmp_path / "alone")

    def test_says_what_is_missing_or_broken(self, tmp_path):
        with pytest.raises(ConfigError, match="no recorded episodes"):
            recorded_groups(tmp_path)
        (tmp_path / "episodes").mkdir()
        (tmp_path / "episodes" / "step-000001.jsonl").write_text(json.dumps({"a": 1}) + "\n")
        with pytest.raises(ValueError, match="line 1: not an episode"):
            recorded_groups(tmp_path)
