import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from art_gym.wrappers.judging import Attempt, JudgeFailed, JudgingError, Rubric, Score
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Ending, Episode, Group, Turn
from art_trainer.errors import ConfigError
from art_trainer.judging import RewardMix, RewardModel, attempt_of, with_scores
from art_trainer.metrics import batch_metrics
from art_trainer.records import read_episodes
from art_trainer.rollout import rollout_groups
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.toy_envs import Echo


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


class TestMix:
    def test_reads_names_and_weights(self) -> None:
        assert RewardMix.parse("env", ()).weights == {"env": 1.0}
        assert RewardMix.parse("0.7*ruler + 0.3*env", ("ruler",)).weights == {"ruler": 0.7, "env": 0.3}
        assert RewardMix.parse("rubric+env", ("rubric",)).judges == ("rubric",)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("rular", "no reward `rular`; did you mean `ruler`"),
            ("", "is not NAME or WEIGHT*NAME"),
            ("0.5*", "is not NAME or WEIGHT*NAME"),
            ("-1*ruler", "'-1' is no number above 0"),
            ("nan*ruler", "'nan' is no number above 0"),
            ("much*ruler", "'much' is no number above 0"),
            ("env+env", "names `env` twice"),
        ],
    )
    def test_refuses_other_words(self, text: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words.replace("*", r"\*")):
            RewardMix.parse(text, ("ruler", "rubric"))


class TestScores:
    def test_a_judge_alone_pays_with_the_last_turn_and_the_env_stays_beside_it(self) -> None:
        group = with_scores(
            made_group([1.0, 0.0]), {"ruler": [Score(0.9, "good"), Score(0.2)]}, RewardMix({"ruler": 1.0})
        )
        first = group.episodes[0]
        assert [turn.reward for turn in first.turns] == [0.0, 0.9]
        assert first.score_terms == {"ruler": 0.9}
        assert first.independent_reward == pytest.approx(1.1)
        assert first.judgements["ruler"].explanation == "good"
        assert group.rewards == (0.9, 0.2)

    def test_a_mix_weighs_every_turn_and_its_terms_sum_to_the_reward(self) -> None:
        mix = RewardMix({"ruler": 0.7, "env": 0.3})
        episode = with_scores(made_group([1.0]), {"ruler": [Score(0.5)]}, mix).episodes[0]
        assert [turn.reward for turn in episode.turns] == pytest.approx([0.03, 0.3 + 0.35])
        for turn in episode.turns:
            assert sum(turn.score_terms.values()) == pytest.approx(turn.reward)

    def test_an_attempt_is_what_the_episode_was(self) -> None:
        attempt = attempt_of(made_group([1.0]).episodes[0], "a")
        assert (attempt.id, attempt.task, attempt.ending, attempt.success) == ("a", "Go.", "terminated", True)
        assert [step.reply for step in attempt.steps] == ["look", "go"]
        assert attempt.facts == {"expected": "end"}

    def test_a_judged_episode_survives_json(self) -> None:
        group = with_scores(
            made_group([1.0]), {"ruler": [Score(0.9, "w", {"goal": 1.0})]}, RewardMix({"ruler": 1.0})
        )
        assert Episode.from_json(json.loads(json.dumps(group.episodes[0].to_json()))) == group.episodes[0]


@pytest.fixture
def models() -> "Callable[..., RewardModel]":
    made: list[RewardModel] = []

    def make(judge: object, mix: str = "ruler", **settings: int) -> RewardModel:
        made.append(RewardModel(RewardMix.parse(mix, ("ruler",)), {"ruler": judge}, **settings))  # type: ignore[dict-item]
        return made[-1]

    yield make  # type: ignore[misc]
    for model in made:
        model.close()


class TestRewardModel:
    def test_groups_come_back_by_index_however_long_each_takes(
        self, models: Callable[..., RewardModel]
    ) -> None:
        first_may_go = threading.Event()

        def slow_first(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
            if group[0].steps[-1].reward == 0.0:
                assert first_may_go.wait(10)
            else:
                first_may_go.set()
            return by_reward(group)

        model = models(slow_first)
        model.submit(0, made_group([0.0, 0.5], task=0))
        model.submit(1, made_group([0.7, 0.6], task=1))
        assert [group.rewards for group in model.collect()] == [(0.0, 0.5), (0.5, 0.0)]
        assert model.collect() == []

    def test_a_failed_judge_leaves_the_group_out_and_is_counted(
        self, models: Callable[..., RewardModel]
    ) -> None:
        def moody(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
            if group[0].steps[-1].reward == 0.0:
                raise JudgeFailed("timeout", "no answer within 60 s")
            return by_reward(group)

        model = models(moody)
        groups = [made_group([0.0, 0.5], task=0), made_group([0.7, 0.6], task=1)]
        for index, group in enumerate(groups):
            model.submit(index, group)
        failed, scored = model.collect()
        assert not failed.whole
        assert {episode.error for episode in failed.episodes} == {"ruler: no answer within 60 s"}
        assert scored.whole
        metrics = batch_metrics([failed, scored])
        assert metrics["unjudged_groups/timeout"] == 1
        assert metrics["failed_groups"] == 1
        # The mean is over the scored group alone; nothing counts as 0.
        assert metrics["reward"] == pytest.approx(0.25)
        assert metrics["independent_reward"] == pytest.approx(0.75)

    def test_a_judge_that_scores_others_than_it_was_given_has_failed(
        self, models: Callable[..., RewardModel]
    ) -> None:
        model = models(lambda group, rubric=None: {"nobody": Score(1.0)})
        model.submit(0, made_group([0.0, 0.5]))
        assert model.collect()[0].episodes[0].unjudged == "malformed"

    def test_a_group_with_a_failed_member_is_not_judged(self, models: Callable[..., RewardModel]) -> None:
        asked: list[int] = []
        model = models(lambda group, rubric=None: asked.append(1))
        members = made_group([0.0, 0.5]).episodes
        model.submit(0, Group((members[0], replace(members[1], ending=Ending.ENV_ERROR))))
        assert not model.collect()[0].whole
        assert asked == []

    def test_a_judge_set_up_wrongly_is_an_error(self, models: Callable[..., RewardModel]) -> None:
        def wrong(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
            raise JudgingError("no function for criterion `x`")

        model = models(wrong)
        model.submit(0, made_group([0.0, 0.5]))
        with pytest.raises(JudgingError, match="no function"):
            model.collect()


def test_each_group_is_told_of_once_and_with_its_place() -> None:
    told: dict[int, Group] = {}
    groups = rollout_groups(
        ScriptedPolicy("scripted"), Echo, [5, 6, 7], 2, on_group=lambda i, group: told.update({i: group})
    )
    assert [told[i] for i in range(3)] == groups
    assert all(episode.facts == {} and episode.tools for group in groups for episode in group.episodes)


def test_a_trainer_learns_from_what_the_judge_says(tmp_path: Path) -> None:
    """The judge likes what the environment does not: long games. The policy follows the judge."""

    def likes_length(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        return {attempt.id: Score(min(1.0, len(attempt.steps) / 5)) for attempt in group}

    policy = guess_policy()
    reward = RewardModel(RewardMix({"ruler": 1.0}), {"ruler": likes_length})
    config = GRPOConfig(
        output_dir=str(tmp_path), max_steps=12, learning_rate=3e-3, groups_per_step=8, num_generations=8,
        max_completion_length=1, seed=1,
    )  # fmt: skip
    trainer = GRPOTrainer(policy, GuessEnv, config, reward=reward)
    trainer.train()
    trainer.close()
    reward.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["turns"] > lines[0]["turns"] + 0.5
    assert lines[-1]["reward"] == pytest.approx(lines[-1]["score/ruler"])
    assert lines[-1]["independent_reward"] != pytest.approx(lines[-1]["reward"])
    shown = read_episodes(tmp_path, 12)[0]
    assert shown.judgements["ruler"].score == shown.turns[-1].score_terms["ruler"]
