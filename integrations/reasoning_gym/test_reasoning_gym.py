"""reasoning-gym's tasks as environments of one turn here."""

from functools import partial

import pytest

pytest.importorskip("reasoning_gym")

import reasoning_gym

from art_gym.wrappers.adapters.reasoning_gym_env import SIZES, ReasoningGymTextEnv
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.rollout.evaluate import evaluate


@pytest.mark.parametrize("name", ["chain_sum", "leg_counting", "simple_equations", "word_sorting"])
def test_same_tasks(name):
    """An item is the one that reasoning-gym makes of its place, and is scored by reasoning-gym."""
    env = ReasoningGymTextEnv(name)
    dataset = reasoning_gym.create_dataset(name, seed=0, size=sum(SIZES.values()))
    for task, place in (("train-0", 0), ("validation-5", 10_005), ("test-7", 10_207)):
        observation, _ = env.reset(options={"task": task})
        assert observation.endswith(dataset[place]["question"])
        _, reward, terminated, _, info = env.step(f"I think <answer>{dataset[place]['answer']}</answer>")
        assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_wrong_answers():
    """A wrong answer gets the right one as observation; with ``exact`` its form earns no reward."""
    env = ReasoningGymTextEnv("chain_sum", exact=True)
    env.reset(seed=1)
    observation, reward, terminated, _, info = env.step("about 7")
    assert observation == f"The answer was: {env.env.item['answer']}"
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_splits():
    """The splits hold different items, and the same seed draws the same one."""
    env = ReasoningGymTextEnv("leg_counting")
    questions = {
        split: {env.reset(options={"task": f"{split}-{place}"})[0] for place in range(50)} for split in SIZES
    }
    assert not questions["train"] & questions["test"]
    assert env.reset(seed=4) == ReasoningGymTextEnv("leg_counting").reset(seed=4)


def test_rollout():
    """Groups are played by this trainer's rollout; the right answers succeed in an evaluation."""
    groups = rollout_groups(
        ScriptedPolicy("answer"), lambda: ReasoningGymTextEnv("chain_sum"), group_specs([1, 2], 3)
    )
    assert all(group.whole for group in groups)
    found = evaluate(
        ScriptedPolicy("answer"), lambda: ReasoningGymTextEnv("chain_sum"), split="test", episodes=40
    )
    assert found.success.value == 1


def test_example_answers():
    """Where many answers are right, the teacher and the last observation give reasoning-gym's example."""
    make = partial(ReasoningGymTextEnv, "propositional_logic")
    assert evaluate(ScriptedPolicy("answer"), make, split="test", episodes=20).success.value == 1
    env = make()
    env.reset(seed=0)
    assert env.step("no")[0] == f"The answer was: {env.env.item['metadata']['example_answer']}"


def test_replies_that_a_dataset_evaluates_or_cannot_read():
    """A dataset that runs replies as code is refused; one that raises at a reply scores it 0."""
    with pytest.raises(ValueError, match="allow_eval"):
        ReasoningGymTextEnv("countdown")
    ReasoningGymTextEnv("countdown", allow_eval=True)
    env = ReasoningGymTextEnv("prime_factorization")
    env.reset(seed=0)
    assert env.step("<answer>I do not know</answer>")[1] == 0


def test_wrong_name():
    """A wrong dataset is named with the nearest right one."""
    with pytest.raises(ValueError, match="did you mean `chain_sum`"):
        ReasoningGymTextEnv("chain_summ")
