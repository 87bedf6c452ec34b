"""TextArena's games as text environments and as games for self-play here."""

import random

import pytest

pytest.importorskip("textarena")

import textarena

from art_gym.wrappers.adapters.textarena_env import TextArenaSoloEnv
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.rollout.evaluate import evaluate


@pytest.fixture(autouse=True)
def own_chance():
    """TextArena seeds the global state when it is played outside."""
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.mark.parametrize(
    "name", ["GuessTheNumber-v0", "FrozenLake-v0-random", "TowerOfHanoi-v0", "Mastermind-v0"]
)
def test_same_episode(name):
    """A seed gives the game that it gives in TextArena, for one player."""
    for seed in (3, 4):
        raw = textarena.make(f"{name}-raw")
        raw.reset(num_players=1, seed=seed)
        expected = [message for _, message, _ in raw.get_observation()[1]]
        env = TextArenaSoloEnv(name)
        observation, _ = env.reset(seed=seed)
        assert all(message.strip() in observation for message in expected)
        env.reset(seed=seed)
        raw.reset(num_players=1, seed=seed)
        raw.get_observation()
        for reply in ("[4]", "[A C]", "[right]", "[down]"):
            done, _ = raw.step(reply)
            _, reward, terminated, _, _ = env.step(reply)
            assert terminated == done
            if done:
                assert reward == raw.close()[0][0]
                break


def test_history_ends_with_the_episode():
    """An observation is what is new, and the first one is the same after every reset."""
    env = TextArenaSoloEnv()
    first, _ = env.reset(seed=1)
    observation = env.step("[20]")[0]
    assert observation.startswith("The target number is")
    assert len(observation) < 60
    assert [env.reset(seed=1)[0] for _ in range(3)] == [first] * 3


def test_no_disturbance():
    """Games stepped in turn change neither each other nor the caller's random state."""
    alone = [TextArenaSoloEnv("FrozenLake-v0-random").reset(seed=seed)[0] for seed in (1, 2)]
    before = random.getstate()
    one, two = TextArenaSoloEnv("FrozenLake-v0-random"), TextArenaSoloEnv("FrozenLake-v0-random")
    assert [one.reset(seed=1)[0], two.reset(seed=2)[0]] == alone
    after_one = one.step("[right]")
    again = TextArenaSoloEnv("FrozenLake-v0-random")
    again.reset(seed=1)
    assert again.step("[right]") == after_one
    assert random.getstate() == before


def test_bad_replies():
    """An invalid reply gets an error message, and a second one in a row ends the game, as in TextArena."""
    env = TextArenaSoloEnv()
    env.reset(seed=3)
    assert "invalid move" in env.step("nonsense")[0]
    observation, _, terminated, _, info = env.step("nonsense")
    assert (terminated, info["success"]) == (True, False)
    assert "Invalid Move" in observation


def test_rollout():
    """Groups of episodes are played by this trainer's rollout."""
    groups = rollout_groups(ScriptedPolicy("random"), TextArenaSoloEnv, group_specs([1, 2], 3))
    assert all(group.whole for group in groups)


def test_random_player():
    """The random player makes moves of the form that the game shows, and finds the number now and then."""
    found = evaluate(ScriptedPolicy("random"), TextArenaSoloEnv, episodes=40)
    assert 0.1 < found.success.value < 0.6
    assert found.invalid_rate < 0.1


def test_wrong_id():
    """A wrong id is named with the nearest right one."""
    with pytest.raises(ValueError, match="did you mean `GuessTheNumber-v0`"):
        TextArenaSoloEnv("GuessTheNumbr-v0")
