import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from art_gym.wrappers.judging import Attempt, JudgeFailedError, JudgingError, Rubric, Score
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.rollout.judge_rewards import JudgeRewards, RewardMix, attempt_of, with_scores
from art_trainer.tracking.episode_store import iter_steps
from art_trainer.training.metrics import batch_metrics
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Ending, Episode, Group, Turn
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.toy_envs import Echo
from tests.art_trainer.updates import logged_metrics


def made_group(rewards: Sequence[float], task: int = 0) -> Group:
    def episode(reward: float) -> Episode:
        turns = (
            Turn("look", "a wall", 0.1, {"looked": 0.1}),
            Turn("go", "the end", reward, {"arrived": reward}, call={"name": "go", "arguments": {}}),
        )
        return Episode(
            "toy", f"task-{task}", task, "Go.", turns, (), Ending.TERMINATED, True, facts={"expected": "end"}
        )

    return Group(tuple(map(episode, rewards)))


def by_reward(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
    """Ranks by the last step's reward, in an order of its own."""
    ranked = sorted(group, key=lambda attempt: attempt.steps[-1].reward)
    return {a.id: Score(place / len(ranked), f"place {place}") for place, a in enumerate(ranked)}


def test_a_mix_is_read_from_names_and_weights() -> None:
    assert RewardMix.parse("env", ()).weights == {"env": 1.0}
    assert RewardMix.parse("0.7*ruler + 0.3*env", ("ruler",)).weights == {"ruler": 0.7, "env": 0.3}
    assert RewardMix.parse("rubric+env", ("rubric",)).judges == ("rubric",)


@pytest.mark.parametrize("text", ["rular", "", "0.5*", "-1*ruler", "nan*ruler", "much*ruler", "env+env"])
def test_other_words_are_no_mix(text: str) -> None:
    with pytest.raises(ConfigError):
        RewardMix.parse(text, ("ruler", "rubric"))


def test_a_judge_alone_pays_with_the_last_turn_and_the_env_stays_beside_it() -> None:
    scores = {"ruler": [Score(0.9, "good"), Score(0.2)]}
    group = with_scores(made_group([1.0, 0.0]), scores, RewardMix({"ruler": 1.0}))
    first = group.episodes[0]
    assert [turn.reward for turn in first.turns] == [0.0, 0.9]
    assert first.score_terms == {"ruler": 0.9}
    assert first.independent_reward == pytest.approx(1.1)
    assert first.judgements["ruler"].explanation == "good"
    assert group.rewards == (0.9, 0.2)


def test_a_mix_weighs_every_turn_and_its_terms_sum_to_the_reward() -> None:
    mix = RewardMix({"ruler": 0.7, "env": 0.3})
    episode = with_scores(made_group([1.0]), {"ruler": [Score(0.5)]}, mix).episodes[0]
    assert [turn.reward for turn in episode.turns] == pytest.approx([0.03, 0.3 + 0.35])
    for turn in episode.turns:
        assert sum(turn.score_terms.values()) == pytest.approx(turn.reward)


def test_an_attempt_is_what_the_episode_was() -> None:
    attempt = attempt_of(made_group([1.0]).episodes[0], "a")
    assert (attempt.id, attempt.task, attempt.ending, attempt.success) == ("a", "Go.", "terminated", True)
    assert [step.reply for step in attempt.steps] == ["look", "go"]
    assert attempt.facts == {"expected": "end"}


def judged(judge: Any, *groups: Group) -> list[Group]:
    """What a judge makes of groups."""
    with closing(JudgeRewards(RewardMix({"ruler": 1.0}), {"ruler": judge})) as rewards:
        for index, group in enumerate(groups):
            rewards.submit(index, group)
        found = rewards.collect()
        assert rewards.collect() == []
        return found


TWO = made_group([0.0, 0.5], task=0), made_group([0.7, 0.6], task=1)


def test_groups_come_back_by_index_however_long_each_takes() -> None:
    first_may_go = threading.Event()

    def slow_first(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        if group[0].steps[-1].reward == 0.0:
            assert first_may_go.wait(300)
        else:
            first_may_go.set()
        return by_reward(group)

    assert [group.rewards for group in judged(slow_first, *TWO)] == [(0.0, 0.5), (0.5, 0.0)]


def test_a_failed_judge_leaves_the_group_out_and_is_counted() -> None:
    def moody(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        if group[0].steps[-1].reward == 0.0:
            raise JudgeFailedError("timeout", "no answer within 60 s")
        return by_reward(group)

    failed, scored = judged(moody, *TWO)
    assert (failed.whole, scored.whole) == (False, True)
    assert {episode.error for episode in failed.episodes} == {"ruler: no answer within 60 s"}
    metrics = batch_metrics([failed, scored])
    # The mean is over the scored group alone; nothing counts as 0.
    wanted = {"unjudged_groups/timeout": 1, "failed_groups": 1, "reward": 0.25, "independent_reward": 0.75}
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted)


def test_a_judge_that_is_wrong_fails_or_is_an_error_and_failed_groups_are_not_judged() -> None:
    (group,) = judged(lambda group, rubric=None: {"nobody": Score(1.0)}, TWO[0])
    assert group.episodes[0].unjudged == "malformed"
    with pytest.raises(JudgingError, match="no function"):
        judged(Mock(side_effect=JudgingError("no function for criterion `x`")), TWO[0])
    first, second = TWO[0].episodes
    judge = Mock()
    assert not judged(judge, Group((first, replace(second, ending=Ending.ENV_ERROR))))[0].whole
    judge.assert_not_called()


def test_each_group_is_reported_once_and_with_its_place() -> None:
    reported: dict[int, Group] = {}
    starts = group_specs([5, 6, 7], 2)
    groups = rollout_groups(ScriptedPolicy("scripted"), Echo, starts, on_group=reported.__setitem__)
    assert [reported[i] for i in range(3)] == groups
    assert all(episode.facts == {} and episode.tools for group in groups for episode in group.episodes)


def test_a_trainer_learns_from_what_the_judge_says(tmp_path: Path) -> None:
    """The judge likes what the environment does not: long games. The policy follows the judge."""

    def likes_length(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        return {attempt.id: Score(min(1.0, len(attempt.steps) / 5)) for attempt in group}

    policy = guess_policy()
    reward = JudgeRewards(RewardMix({"ruler": 1.0}), {"ruler": likes_length})
    config = GRPOConfig(
        output_dir=str(tmp_path), max_steps=12, learning_rate=3e-3, groups_per_step=8, num_generations=8,
        max_completion_length=1, seed=1,
    )  # fmt: skip
    trainer = GRPOTrainer(policy, GuessEnv, config, reward=reward)
    trainer.train()
    trainer.close()
    reward.close()
    first, *_, last = logged_metrics(tmp_path)
    assert last["turns"] > first["turns"] + 0.5
    assert last["reward"] == pytest.approx(last["score/ruler"])
    assert last["independent_reward"] != pytest.approx(last["reward"])
    shown = next(iter_steps(tmp_path, (12,))).groups[0].episodes[0]
    assert shown.judgements["ruler"].score == shown.turns[-1].score_terms["ruler"]
