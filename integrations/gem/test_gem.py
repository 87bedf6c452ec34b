"""GEM's environments as text environments here."""

import random

import numpy as np
import pytest

pytest.importorskip("gem")

import gem

from art_gym.wrappers.adapters.gem_env import GemTextEnv
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import group_specs, rollout_groups

GUESS = "game:GuessTheNumber-v0-easy"


def played(env, seed, replies):
    """What an episode says and pays."""
    found = [env.reset(seed=seed)[0]]
    for reply in replies:
        observation, reward, terminated, truncated, _ = env.step(reply)
        found.append((observation, reward))
        if terminated or truncated:
            break
    return found


@pytest.mark.parametrize(
    "env_id", [GUESS, "game:Mastermind-v0-easy", "game:Minesweeper-v0-easy", "rg:chain_sum"]
)
def test_same_episode(env_id):
    """A seed gives the episode that it gives in GEM: games and reasoning-gym tasks."""
    env = GemTextEnv(env_id, max_turns=100)
    for seed in (1, 2, 30):
        raw = gem.make(env_id)
        first, _ = raw.reset(seed)
        env.reset(seed=seed)
        assert first.split()[:5] == env.reset(seed=seed)[0].split()[:5]
        rng = np.random.default_rng(seed)
        act = env.baselines["random"](env, rng) if env_id.startswith("game") else (lambda _: "7")
        state = random.getstate(), np.random.get_state()  # noqa: NPY002
        for _ in range(5):
            reply = act("")
            inside = env.step(reply)
            random.setstate(state[0])
            np.random.set_state(state[1])  # noqa: NPY002
            outside = raw.step(reply)
            state = random.getstate(), np.random.get_state()  # noqa: NPY002
            assert inside[1] == outside[1]
            assert inside[2] or inside[3] or inside[0].startswith(outside[0].rstrip())
            assert (inside[2] or inside[3]) == (outside[2] or outside[3])
            if outside[2] or outside[3]:
                break


def test_no_disturbance():
    """Episodes stepped in turn change neither each other nor the caller's random state; in GEM they do."""
    replies = ["\\boxed{5}", "\\boxed{7}", "\\boxed{2}"]
    alone = [played(GemTextEnv("game:Minesweeper-v0-easy"), seed, ["\\boxed{reveal 0 0}"]) for seed in (1, 2)]
    before = random.getstate()
    envs = [GemTextEnv("game:Minesweeper-v0-easy") for _ in range(2)]
    together = [[env.reset(seed=seed)[0]] for seed, env in zip((1, 2), envs, strict=True)]
    for env, found in zip(envs, together, strict=True):
        observation, reward, *_ = env.step("\\boxed{reveal 0 0}")
        found.append((observation, reward))
    assert together == alone
    assert random.getstate() == before
    assert played(GemTextEnv(GUESS), 3, replies) == played(GemTextEnv(GUESS), 3, replies)


def test_time_limit():
    """GEM's time limit truncates, GEM sets both flags; an invalid reply ends a game, as in GEM."""
    env = GemTextEnv("game:GuessTheNumber-v0-hard")
    env.reset(seed=0)
    low = [f"\\boxed{{{number}}}" for number in range(1, 40)]
    for reply in low:
        *_, terminated, truncated, info = env.step(reply)
        if terminated or truncated:
            break
    assert info["success"] is not truncated
    env.reset(seed=0)
    assert env.step("I do not know")[1:4] == (-0.1, True, False)


def test_success_in_parts():
    """A game is a success if GEM paid all of its reward, in parts too; some have no random player."""
    env = GemTextEnv("game:Mastermind-v0-easy")
    env.reset(seed=0)
    first, second = env.env.gem.unwrapped.game_code
    other = next(number for number in range(1, 7) if number not in (first, second))
    assert env.step(f"\\boxed{{{first} {other}}}")[1] == 0.5
    _, reward, terminated, _, info = env.step(f"\\boxed{{{first} {second}}}")
    assert (reward, terminated, info["success"]) == (0.5, True, True)
    sudoku = GemTextEnv("game:Sudoku-v0-easy")
    assert sudoku.baselines["random"](sudoku, np.random.default_rng(0))("") == "pass"


def test_rollout():
    """Groups of episodes are played by this trainer's rollout, with GEM's own random player."""
    groups = rollout_groups(ScriptedPolicy("random"), lambda: GemTextEnv(GUESS), group_specs([1, 2, 3], 4))
    assert all(group.whole for group in groups)
    assert {episode.success for group in groups for episode in group.episodes} == {True, False}


def test_wrong_id():
    """A wrong id is named with the nearest right one."""
    with pytest.raises(ValueError, match="did you mean `game:GuessTheNumber-v0-easy`"):
        GemTextEnv("game:GuessTheNumbr-v0-easy")


def test_limit_word_games():
    """Word games (Wordle, Hangman) need a word list that NLTK downloads when they are made."""
    import nltk

    try:
        nltk.data.find("corpora/words")
    except LookupError:
        with pytest.raises(LookupError):
            GemTextEnv("game:Hangman-v0-easy").reset(seed=0)
