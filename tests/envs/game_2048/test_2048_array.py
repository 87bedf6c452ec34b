"""``art/2048Array-v0``: one game in arrays."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from art_gym.envs.game_2048.array_env import Array2048Env
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.rules.board import ACTIONS
from art_gym.errors import ResetNeededError, UnknownTaskError


def started(seed: int = 0, **options: Any) -> Array2048Env:
    env = Array2048Env(**options)
    env.reset(seed=seed)
    return env


def random_moves(count: int, seed: int = 1) -> list[int]:
    return [int(move) for move in np.random.default_rng(seed).integers(0, 4, count)]


@pytest.mark.parametrize("reward", ["score", "shaped", "target"])
@pytest.mark.parametrize(("split", "shared_chance"), [("train", True), ("test", False)])
def test_the_same_seed_is_the_same_game_as_text(reward: str, split: str, shared_chance: bool) -> None:
    options: dict[str, Any] = {"reward": reward, "split": split, "shared_chance": shared_chance, "target": 32}
    options |= {"max_turns": 90}
    arrays, words = Array2048Env(**options), Game2048Env(**options, invalid_action_penalty=0.0)
    for seed in (3, None):  # the second game comes from the generator's next word
        arrays.reset(seed=seed)
        words.reset(seed=seed)
        for move in random_moves(200):
            assert words.exponents == tuple(arrays.rules.exponents(arrays.board))
            _, reward_here, terminated, truncated, info = arrays.step(move)
            _, reward_there, ended, cut, text_info = words.step(ACTIONS[move])
            assert (terminated, truncated) == (ended, cut)
            assert reward_here == pytest.approx(reward_there, abs=1e-12)
            assert info["score"] == words.score
            assert info["illegal"] == ("illegal_move" in text_info["score_terms"])
            if terminated or truncated:
                break
        else:
            pytest.fail("the game did not end")


def test_the_masks_say_what_is_legal_and_an_illegal_move_changes_nothing() -> None:
    env = started(illegal_move_penalty=0.25)
    for _ in range(60):
        mask = env.action_masks()
        illegal = np.flatnonzero(~mask)
        if illegal.size:
            board, score = env.board, env.score
            _, reward, _, _, info = env.step(int(illegal[0]))
            assert (env.board, env.score, reward, info["illegal"]) == (board, score, -0.25, True)
            assert (info["action_mask"].dtype, info["action_mask"].tolist()) == (np.int8, mask.tolist())
        board = env.board
        if env.step(env.action_space.sample(mask=mask.astype(np.int8)))[2]:
            break
        assert env.board != board


def test_maskable_ppo_of_sb3_contrib_makes_only_legal_moves() -> None:
    contrib = pytest.importorskip("sb3_contrib")
    env = Array2048Env(board_size=3)
    flat = gym.wrappers.FlattenObservation(env)
    model = contrib.MaskablePPO("MlpPolicy", flat, n_steps=32, batch_size=32, device="cpu", seed=1)
    model.learn(32)
    observation, _ = flat.reset(seed=0)
    for _ in range(20):
        action, _ = model.predict(observation, action_masks=env.action_masks())
        observation, _, _, _, info = flat.step(int(action))
        assert not info["illegal"]


def test_one_hot_planes_say_what_the_exponents_say() -> None:
    plain, planes = started(4, board_size=5), started(4, board_size=5, observation="one_hot")
    assert planes.observation_space.shape == (5, 5, 27)
    for move in random_moves(80):
        exponents, one_hot = plain.step(move)[0], planes.step(move)[0]
        assert planes.observation_space.contains(one_hot)
        assert (one_hot.argmax(-1) == exponents).all()
        assert (one_hot.sum(-1) == 1).all()


def test_every_step_gives_arrays_of_its_own() -> None:
    env = Array2048Env()
    first, info = env.reset(seed=0)
    kept = [first, info["action_mask"]]
    for move in random_moves(20):
        observation, *_, info = env.step(move)
        for new in (observation, info["action_mask"]):
            assert not any(np.shares_memory(new, old) for old in kept)
            kept.append(new)
    for array in kept:
        array[:] = 99
    assert env.observation_space.contains(env.step(0)[0])


def test_how_a_game_ends() -> None:
    env = started(board_size=3)
    while not (ended := env.step(int(env.action_masks().argmax())))[2]:
        assert not ended[3]
    assert ended[4]["action_mask"].tolist() == [0, 0, 0, 0]
    with pytest.raises(ResetNeededError):
        env.step(0)
    short = started(max_turns=3)
    assert [short.step(move)[2:4] for move in (0, 1, 2)] == [(False, False), (False, False), (False, True)]
    quick = started(target=16, stop_at_target=True)
    terminated = False
    while not terminated:
        observation, _, terminated, _, info = quick.step(int(np.flatnonzero(quick.action_masks())[0]))
        assert terminated == (observation.max() == 4)
    assert info["action_mask"].any()


def test_a_snapshot_brings_the_game_and_its_chance_back() -> None:
    env = started(7)
    for move in random_moves(20):
        env.step(move)
    here, moves = env.snapshot(), random_moves(40, seed=2)
    first = [env.step(move)[0].tolist() for move in moves]
    for player, snapshot in ((Array2048Env(), here), (env, pickle.loads(pickle.dumps(here)))):
        player.restore(snapshot)
        assert [player.step(move)[0].tolist() for move in moves] == first
    with pytest.raises(ValueError, match="made with board_size=4, this one with 5"):
        Array2048Env(board_size=5).restore(here)


@pytest.mark.parametrize(
    ("action", "error"),
    [
        *((wrong, TypeError) for wrong in (1.0, "left", None, True, np.float32(1), np.array([1]))),
        *((wrong, ValueError) for wrong in (-1, 4, np.int64(7), np.uint8(255))),
    ],
)
def test_an_action_that_is_none_is_refused_and_takes_no_turn(action: Any, error: type[Exception]) -> None:
    env = started()
    with pytest.raises(error, match="an action is"):
        env.step(action)
    assert env.turn == 0


@pytest.mark.parametrize("action", [1, np.int64(1), np.uint8(1), np.array(1)])
def test_any_integer_is_an_action(action: Any) -> None:
    assert (started().step(action)[0] == started().step(1)[0]).all()


def test_bad_resets_get_a_clear_error() -> None:
    env = Array2048Env()
    with pytest.raises(ResetNeededError):
        env.step(0)
    with pytest.raises(gym.error.Error, match="greater or equal to zero"):
        env.reset(seed=-1)
    with pytest.raises(ValueError, match="splits"):
        env.reset(options={"splits": "test"})
    with pytest.raises(UnknownTaskError, match="tset"):
        env.reset(options={"split": "tset"})
