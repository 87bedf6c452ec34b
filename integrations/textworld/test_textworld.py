"""TextWorld's adventures as text environments here."""

import numpy as np
import pytest

pytest.importorskip("textworld")

import textworld

from art_gym.wrappers.adapters.textworld_env import TextWorldTextEnv
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import group_specs, rollout_groups

# Jericho says so of every game made by TextWorld; the adapter keeps it quiet.
pytestmark = pytest.mark.filterwarnings("ignore:.*not fully supported")


def test_same_episode(tmp_path):
    """The same commands give the same texts and rewards as in TextWorld, on a game from a file."""
    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length, options.seeds = 3, 5, 3, 11
    options.path = str(tmp_path / "mine.z8")
    file, _ = textworld.make(options)
    raw = textworld.start(file, textworld.EnvInfos(admissible_commands=True))
    state = raw.reset()
    env = TextWorldTextEnv(files=[file])
    env.reset(seed=0)
    rng, score = np.random.default_rng(0), 0
    for _ in range(15):
        command = str(rng.choice(state.admissible_commands))
        state, total, done = raw.step(command)
        observation, reward, terminated, *_ = env.step(command)
        assert (reward, terminated) == (total - score, done)
        first = next(line.strip() for line in state.feedback.splitlines() if line.strip())
        assert observation.startswith(first)
        score = total
        if done:
            break
    raw.close()
    env.close()


def test_made_games():
    """Games are made from seeds, with held-out ones, and their walkthrough wins them."""
    env = TextWorldTextEnv()
    first = env.reset(seed=1, options={"split": "test"})
    assert env.reset(seed=1, options={"split": "test"}) == first
    assert first[1]["task_id"].startswith("test-")
    act = env.teachers["walkthrough"](env, np.random.default_rng(0))
    ended = False
    while not ended:
        *_, terminated, truncated, info = env.step(act(""))
        ended = terminated or truncated
    assert info["success"]
    assert info["metrics"]["env_return"] == 1
    env.close()


def test_bad_replies():
    """The game's own parser answers replies that are not commands."""
    env = TextWorldTextEnv()
    env.reset(seed=0, options={"task": "train-0"})
    observation, reward, terminated, *_ = env.step("fly to the moon")
    assert "not a verb I recognise" in observation
    assert (reward, terminated) == (0, False)
    assert not observation.rstrip().endswith(">")
    env.close()


def test_rollout():
    """Groups of episodes are played by this trainer's rollout."""
    groups = rollout_groups(
        ScriptedPolicy("random"), lambda: TextWorldTextEnv(max_turns=5), group_specs([1, 2], 2)
    )
    assert all(group.whole for group in groups)


def test_limit_snapshots():
    """No snapshots: the interpreter's memory cannot be pickled."""
    with pytest.raises(NotImplementedError, match="cannot be copied"):
        TextWorldTextEnv().snapshot()
