import json
from functools import partial

import gymnasium as gym
import pytest

from art_gym import Task, TaskSet, UnknownTaskError
from art_trainer.config import GRPOConfig
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.backend import LocalBackend
from art_trainer.rollout.evaluate import (
    EpisodeResult,
    Evaluation,
    compare,
    evaluate,
    evaluation_split,
    evaluation_starts,
)
from art_trainer.types import Ending
from tests.art_trainer.toy_envs import Echo

make_echo = partial(gym.make, "toy/Echo-v0")


class Bare(gym.Env):
    """Text in and out, and nothing that is ours: no tasks, no standard info."""

    action_space = observation_space = gym.spaces.Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"say {self.np_random.integers(1000)}", {}

    def step(self, action):
        return "bye", 0.5, True, False, {}


class Sayer(ScriptedPolicy):
    """A policy that always says its name."""

    def submit(self, conversation):
        conversation.state = lambda observation: self.name
        super().submit(conversation)


def test_episode_k_plays_task_k_and_begins_again_after_the_last():
    env = make_echo()
    starts = evaluation_starts(env, episodes=8, seed=3)
    assert [start.options["task"] for start in starts] == [f"test-{k % 6}" for k in range(8)]
    assert len({start.seed for start in starts}) == 8
    assert starts == evaluation_starts(env, episodes=8, seed=3)
    assert starts[:6] == evaluation_starts(env, seed=3)
    assert starts != evaluation_starts(env, episodes=8, seed=4)


def test_a_part_of_a_split_is_not_its_first_tasks_and_the_same_for_every_seed():
    parts = [
        [one.options["task"] for one in evaluation_starts(make_echo(), episodes=3, seed=s)] for s in (0, 1)
    ]
    assert parts[0] == parts[1] != ["test-0", "test-1", "test-2"]
    assert len(set(parts[0])) == 3


def test_a_trainers_evaluation_has_the_splits_of_the_environment_it_plays():
    backend = LocalBackend(ScriptedPolicy("random"), Bare, make_echo, GRPOConfig(eval_split="train"))
    assert backend.training_options() is None
    assert backend.evaluate(episodes=2, seed=0).split == "train"


def test_the_split_is_test_unless_another_is_asked_for_or_there_are_no_tasks():
    env = make_echo()
    assert evaluation_split(env, None) == "test"
    assert evaluation_split(env, "train") == "train"
    with pytest.raises(UnknownTaskError, match="did you mean `validation`"):
        evaluation_split(env, "validaton")
    assert evaluation_split(Bare(), "test") is None
    for split in ("train", "test"):  # one task: by default it is only played if it is to train on
        env.unwrapped.tasks = TaskSet([Task("one", "", split)])
        assert evaluation_split(env, None) == (None if split == "train" else "test")
    starts = evaluation_starts(Bare())
    assert all(start.options is None for start in starts)
    assert len({start.seed for start in starts}) == len(starts) == 100


def test_the_averages_are_those_of_the_episodes():
    evaluation = evaluate(Sayer("red"), make_echo)
    assert (evaluation.policy, evaluation.env_id, evaluation.split) == ("red", "toy/Echo-v0", "test")
    assert evaluation.success.value == pytest.approx(2 / 6)
    assert evaluation.success.count == 6
    assert evaluation.reward.value == pytest.approx((2 * 0.9 + 4 * -0.2) / 6)
    assert evaluation.score_terms == pytest.approx({"word": 2 / 6, "speed": -(2 * 0.1 + 4 * 0.2) / 6})
    assert sum(evaluation.score_terms.values()) == pytest.approx(evaluation.reward.value)
    assert evaluation.turns == pytest.approx(10 / 6)
    assert evaluation.invalid_rate == 0
    assert evaluate(Sayer("purple"), make_echo).invalid_rate == 1


def test_an_evaluation_survives_a_trip_through_json():
    evaluation = evaluate(ScriptedPolicy("scripted"), make_echo, settings={"temperature": 0.0})
    again = Evaluation.from_json(json.loads(json.dumps(evaluation.to_json())))
    assert again == evaluation
    assert again.results[0].ending is Ending.TERMINATED
    assert again.success == evaluation.success


def test_faults_are_counted_apart_and_are_in_no_average():
    transcripts, ended = [], []
    watched = {"transcripts": transcripts, "on_episode": ended.append, "max_concurrent": 2}
    evaluation = evaluate(ScriptedPolicy("scripted"), lambda: Echo(fragile=True), **watched)
    assert evaluation.faults == 1
    assert str(evaluation.results[1].error).startswith("RuntimeError: out of paint (toy_envs.py, line ")
    assert (evaluation.success.value, evaluation.success.count) == (1.0, 5)
    # Transcripts come in the order of the starts, and every end is reported once.
    names = [f"test-{k}" for k in range(6)]
    assert [episode.task_id for episode in transcripts] == names
    assert sorted(episode.task_id for episode in ended) == names


def test_the_paired_difference_is_over_equal_starts():
    first, second = evaluate(Sayer("red"), make_echo), evaluate(ScriptedPolicy("scripted"), make_echo)
    difference = compare(first, second)
    assert (difference.first, difference.second) == ("red", "scripted")
    assert difference.success.value == pytest.approx(4 / 6)
    assert difference.reward.value == pytest.approx(second.reward.value - first.reward.value)
    fragile = evaluate(ScriptedPolicy("scripted"), partial(make_echo, fragile=True))
    assert compare(first, fragile).reward.count == 5  # a pair with a fault is left out
    mirrored = compare(second, first)
    assert mirrored.success.low == pytest.approx(-difference.success.high)


def test_different_starts_are_not_compared():
    first = evaluate(Sayer("red"), make_echo)
    others = [(make_echo, {"seed": 1}), (make_echo, {"episodes": 5}), (make_echo, {"split": "train"})]
    for make, options in [*others, (Bare, {"episodes": 6})]:
        with pytest.raises(ValueError, match="did not meet the same starts"):
            compare(first, evaluate(Sayer("red"), make, **options))


def test_nothing_but_faults_has_no_averages():
    class Broken(Echo):
        def begin(self, task):
            raise RuntimeError("never begins")

    evaluation = evaluate(Sayer("red"), Broken)
    assert evaluation.faults == 6
    assert evaluation.reward is None
    assert evaluation.success is None
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(evaluation, evaluation)


def test_an_episode_that_filled_its_context_has_not_succeeded() -> None:
    def evaluation(won: int) -> Evaluation:
        endings = [(Ending.TERMINATED, True)] * won + [(Ending.CONTEXT_FULL, None)] * (8 - won)
        results = [EpisodeResult(f"t{n}", n, *end, 0.0, {}, {}, 1, 0, 0) for n, end in enumerate(endings)]
        return Evaluation("p", "e", None, 0, tuple(results), 1.0)

    some, none = evaluation(2), evaluation(0)
    assert some.success.value == 0.25
    assert none.success is None
    assert compare(none, some).success.value == 0.25


def made(successes: dict[str, list[bool | None]]) -> Evaluation:
    """An evaluation with these outcomes of attempts by task; ``None`` is an attempt that a fault ended."""

    def result(task: str, won: bool | None) -> EpisodeResult:
        ending = Ending.ENV_ERROR if won is None else Ending.TERMINATED
        return EpisodeResult(task, 1, ending, won, float(bool(won)), {}, {}, 1, 0, 0)

    results = tuple(result(task, won) for task, attempts in successes.items() for won in attempts)
    return Evaluation("p", "e", None, 0, results, 1.0, samples=4)


def test_attempts_at_one_start_share_its_state_and_not_the_randomness() -> None:
    starts = evaluation_starts(make_echo(), episodes=3, seed=5, samples=2)
    alone = evaluation_starts(make_echo(), episodes=3, seed=5)
    assert starts[::2] == alone
    for first, second in zip(starts[::2], starts[1::2], strict=True):
        assert (first.seed, first.options, first.group) == (second.seed, second.options, second.group)
        assert first.rng_seed != second.rng_seed
    assert len({str(start.rng_seed) for start in starts}) == 6
    with pytest.raises(TypeError, match=r"policy is the text 'red': give .* ScriptedPolicy\('red'\)"):
        evaluate("red", make_echo)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="has no baseline `randon`; did you mean `random`"):
        evaluate(ScriptedPolicy("randon"), make_echo)
    for name in ("samples", "episodes"):
        with pytest.raises(ValueError, match="at least one"):
            evaluation_starts(make_echo(), **{name: 0})


def test_several_attempts_are_counted_by_start() -> None:
    evaluation = evaluate(ScriptedPolicy("random"), lambda: gym.make("toy/Echo-v0", max_turns=1), samples=8)
    assert (evaluation.samples, len(evaluation.results)) == (8, 48)
    assert [result.task_id for result in evaluation.results[::8]] == [f"test-{k}" for k in range(6)]
    assert evaluation.pass_at(1).value == pytest.approx(evaluation.success.value)
    rates = [evaluation.pass_at(k).value for k in (1, 2, 4, 8)]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0]
    assert evaluation.pass_at(9) is None


def test_pass_at_k_is_the_mean_over_starts_with_enough_attempts() -> None:
    evaluation = made({"a": [True, False, False, False], "bb": [True] * 4, "ccc": [False] * 4})
    assert evaluation.pass_at(2).value == pytest.approx((0.5 + 1 + 0) / 3)
    assert evaluation.pass_at(2).count == 3
    evaluation = made({"a": [True, None, None, None], "bb": [False, False, True, None]})
    assert evaluation.pass_at(1).value == pytest.approx((1 + 1 / 3) / 2)
    assert evaluation.pass_at(2).value == pytest.approx(2 / 3)
    assert evaluation.pass_at(4) is None
    assert evaluate(Sayer("hello"), Bare, episodes=2, samples=2).pass_at(1) is None


def test_the_tasks_fields_are_kept_and_divide_an_evaluation() -> None:
    evaluation = evaluate(Sayer("red"), make_echo)
    assert evaluation.tasks["test-1"] == {"word": "green"}
    parts = evaluation.by("word")
    assert list(parts) == ["blue", "green", "red"]
    assert parts["red"].success.value == 1
    assert parts["green"].success.value == 0
    assert sum(len(part.results) for part in parts.values()) == 6
    with pytest.raises(ValueError, match="did you mean `word`"):
        evaluation.by("wrod")


def test_a_comparison_says_how_likely_it_is_by_chance() -> None:
    first = made({f"t{k}": [False] for k in range(6)})
    second = made({f"t{k}": [True] for k in range(6)})
    comparison = compare(first, second)
    assert comparison.success_p == pytest.approx(2 / 2**6)
    assert comparison.reward_p == pytest.approx(2 / 2**6)
    assert compare(first, first).success_p == 1
    silent = [evaluate(Sayer(word), Bare, episodes=3) for word in "ab"]
    assert compare(*silent).success_p is None
