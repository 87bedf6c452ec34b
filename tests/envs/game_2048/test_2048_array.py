"""``art/2048Array-v0``: one game in arrays."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from art_gym.envs.game_2048.array_env import Array2048Env
from art_gym.envs.game_2048.board import ACTIONS, Rules
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.errors import ResetNeeded, UnknownTask

_ID = "test/2048Array-v0"
_ENTRY_POINT = "art_gym.envs.game_2048.array_env:Array2048Env"


@pytest.fixture(autouse=True)
def registered() -> None:
    if _ID not in gym.registry:
        gym.register(_ID, entry_point=_ENTRY_POINT, order_enforce=False, disable_env_checker=True)


def play(env: Array2048Env, moves: list[int], seed: int = 0) -> list[tuple[Any, ...]]:
    """What a run of moves gives, begun anew where a game ends."""
    seen: list[tuple[Any, ...]] = []
    observation, info = env.reset(seed=seed)
    seen.append((observation.tolist(), info["action_mask"].tolist()))
    for move in moves:
        observation, reward, terminated, truncated, info = env.step(move)
        mask = info.pop("action_mask").tolist()
        seen.append((observation.tolist(), reward, terminated, truncated, mask, info))
        if terminated or truncated:
            env.reset()
    return seen


def random_moves(count: int, seed: int = 1) -> list[int]:
    return [int(move) for move in np.random.default_rng(seed).integers(0, 4, count)]


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"board_size": 3, "reward": "shaped"},
        {"board_size": 8, "observation": "one_hot", "reward": "target"},
        {"shared_chance": False, "split": "test"},
    ],
    ids=str,
)
def test_gymnasiums_own_check_passes_without_a_warning(kwargs: dict[str, Any]) -> None:
    env = gym.make(_ID, **kwargs)
    check_env(env.unwrapped)


def test_stable_baselines_own_check_passes() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    flat = gym.wrappers.FlattenObservation(gym.make(_ID))
    checker.check_env(flat)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checker.check_env(gym.make(_ID))
    # It would rather have a vector or an image than a board, and says nothing else.
    words = [str(warning.message) for warning in caught]
    assert [said for said in words if "unconventional shape" not in said] == []


@pytest.mark.parametrize("reward", ["score", "shaped", "target"])
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("shared_chance", [True, False])
def test_the_same_seed_is_the_same_game_in_words(reward: str, split: str, shared_chance: bool) -> None:
    options: dict[str, Any] = {"reward": reward, "split": split, "shared_chance": shared_chance, "target": 32}
    options |= {"max_turns": 90}
    arrays, words = Array2048Env(**options), Game2048Env(**options, invalid_action_penalty=0.0)
    for seed in (3, None):  # the second game comes from the generator's next word
        arrays.reset(seed=seed)
        words.reset(seed=seed)
        for move in random_moves(200):
            assert words.exponents == tuple(arrays.rules.exponents(arrays.board))
            _, reward_here, terminated, truncated, info = arrays.step(move)
            _, reward_there, ended, cut, told = words.step(ACTIONS[move])
            assert (terminated, truncated) == (ended, cut)
            assert reward_here == pytest.approx(reward_there, abs=1e-12)
            assert info["score"] == words.score
            assert info["illegal"] == ("illegal_move" in told["score_terms"])
            if terminated or truncated:
                break
        else:
            pytest.fail("the game did not end")


def test_an_illegal_move_changes_nothing_and_is_told() -> None:
    env = Array2048Env(illegal_move_penalty=0.25)
    env.reset(seed=0)
    while env.action_masks().all():
        env.step(0)
    move = int(env.action_masks().argmin())
    board, score = env.board, env.score
    observation, reward, terminated, truncated, info = env.step(move)
    assert (env.board, env.score) == (board, score)
    assert (reward, terminated, truncated, info["illegal"]) == (-0.25, False, False, True)
    assert tuple(observation.ravel()) == env.rules.exponents(board)
    assert info["action_mask"][move] == 0


def test_the_mask_says_what_is_legal_and_the_space_samples_by_it() -> None:
    env = Array2048Env()
    _, info = env.reset(seed=0)
    for _ in range(60):
        assert info["action_mask"].dtype == np.int8
        assert env.action_masks().tolist() == [bool(allowed) for allowed in info["action_mask"]]
        action = env.action_space.sample(mask=info["action_mask"])
        before = env.board
        _, _, terminated, _, info = env.step(action)
        assert env.board != before
        if terminated:
            break


def test_one_hot_planes_say_what_the_exponents_say() -> None:
    plain, planes = Array2048Env(board_size=5), Array2048Env(board_size=5, observation="one_hot")
    assert planes.observation_space.shape == (5, 5, 27)
    plain.reset(seed=4)
    planes.reset(seed=4)
    for move in random_moves(80):
        exponents, one_hot = plain.step(move)[0], planes.step(move)[0]
        assert planes.observation_space.contains(one_hot)
        assert (one_hot.argmax(-1) == exponents).all()
        assert (one_hot.sum(-1) == 1).all()


def test_every_step_gives_objects_of_its_own() -> None:
    env = Array2048Env()
    first, info = env.reset(seed=0)
    kept = first.copy(), info["action_mask"].copy()
    observations, masks = [first], [info["action_mask"]]
    for move in random_moves(40):
        observation, *_, info = env.step(move)
        observations.append(observation)
        masks.append(info["action_mask"])
    assert len({id(item) for item in observations}) == len(observations)
    assert not any(np.shares_memory(one, other) for one, other in itertools.pairwise(masks))
    first[:] = 99
    masks[-1][:] = 99
    assert env.observation_space.contains(env.step(0)[0])
    assert (kept[0] <= 2).all()
    assert env.step(1)[4]["action_mask"].max() <= 1


def test_the_game_ends_when_nothing_is_legal_or_the_turns_are_over_or_the_target_is_reached() -> None:
    env = Array2048Env(board_size=3)
    env.reset(seed=0)
    while not (ended := env.step(int(env.action_masks().argmax())))[2]:
        assert not ended[3]
    assert ended[4]["action_mask"].tolist() == [0, 0, 0, 0]
    with pytest.raises(ResetNeeded):
        env.step(0)

    short = Array2048Env(max_turns=3)
    short.reset(seed=0)
    assert [short.step(move)[2:4] for move in (0, 1, 2)] == [(False, False), (False, False), (False, True)]

    quick = Array2048Env(target=16, stop_at_target=True)
    observation, _ = quick.reset(seed=0)
    while observation.max() < 4:
        move = quick.action_space.sample(quick.action_masks().astype(np.int8))
        observation, _, terminated, _, info = quick.step(move)
        assert terminated == (observation.max() == 4)
    assert info["action_mask"].any()


def test_a_snapshot_brings_the_game_and_its_chance_back() -> None:
    env = Array2048Env()
    env.reset(seed=7)
    for move in random_moves(20):
        env.step(move)
    here = env.snapshot()
    moves = random_moves(300, seed=2)
    first = [env.step(move)[0].tolist() for move in moves[:40]]
    other = Array2048Env()
    for player in (env, other):
        player.restore(here)
        assert [player.step(move)[0].tolist() for move in moves[:40]] == first
    env.restore(pickle.loads(pickle.dumps(here)))
    assert [env.step(move)[0].tolist() for move in moves[:40]] == first
    with pytest.raises(ValueError, match="not of"):
        env.restore(Game2048Env().snapshot())


def test_copies_and_pickles_play_on_alike() -> None:
    env = Array2048Env(board_size=4, reward="shaped")
    env.reset(seed=7)
    env.step(1)
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    moves = random_moves(400)
    expected = [env.step(move)[:2] for move in moves[:50]]
    for clone in copies:
        assert clone.rules is env.rules
        for (board, reward), move in zip(expected, moves, strict=False):
            observation, paid, *_ = clone.step(move)
            assert (observation == board).all()
            assert paid == reward


def test_seeds_repeat_games_and_games_do_not_disturb_each_other() -> None:
    moves = random_moves(400)
    alone = play(Array2048Env(), moves, seed=5)
    one, other = Array2048Env(), Array2048Env()
    other.reset(seed=5)
    state = np.random.get_state()[1].tolist()  # noqa: NPY002  # the global generator is what is looked at
    together = []
    observation, info = one.reset(seed=5)
    together.append((observation.tolist(), info["action_mask"].tolist()))
    for move in moves:
        if other._running:
            other.step(move)
        observation, reward, terminated, truncated, info = one.step(move)
        mask = info.pop("action_mask").tolist()
        together.append((observation.tolist(), reward, terminated, truncated, mask, info))
        if terminated or truncated:
            one.reset()
    assert together == alone
    assert play(Array2048Env(), moves, seed=6) != alone
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_splits_never_share_a_game() -> None:
    env = Array2048Env()
    boards = {}
    for split in ("train", "validation", "test"):
        env.reset(seed=11, options={"split": split})
        boards[split] = env._chance.key
        assert Array2048Env(split=split).reset(seed=11)[0].tolist() == env._observation().tolist()
    assert {key & 3 for key in boards.values()} == {0, 1, 2}


def test_every_render_mode_shows_the_board(capsys: pytest.CaptureFixture[str]) -> None:
    text = gym.make(_ID, render_mode="ansi")
    text.reset(seed=0)
    text.step(0)
    shown = text.render()
    assert isinstance(shown, str)
    assert "2" in shown
    assert f"{text.unwrapped.score}" in shown  # type: ignore[attr-defined]
    picture = Array2048Env(render_mode="rgb_array")
    picture.reset(seed=0)
    frame = picture.render()
    assert isinstance(frame, np.ndarray)
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    human = Array2048Env(render_mode="human")
    human.reset(seed=0)
    human.step(0)
    assert human.render() is None
    assert capsys.readouterr().out.count("\n") >= 8
    assert Array2048Env().render() is None


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"board_size": 0}, ValueError, "from 3 to 8, not 0"),
        ({"board_size": 4.0}, TypeError, "must be an int"),
        ({"observation": "onehot"}, ValueError, "did you mean `one_hot`"),
        ({"reward": "scores"}, ValueError, "did you mean `score`"),
        ({"target": 100}, ValueError, "power of two"),
        ({"board_size": 3, "target": 2048}, ValueError, "from 8 to 1024"),
        ({"target": "2048"}, TypeError, "must be an int such as 2048"),
        ({"illegal_move_penalty": -1}, ValueError, "0 or more"),
        ({"illegal_move_penalty": float("nan")}, ValueError, "0 or more"),
        ({"max_turns": 0}, ValueError, "at least 1"),
        ({"max_turns": 2.5}, TypeError, "must be an int"),
        ({"split": "tset"}, UnknownTask, "did you mean `test`"),
        ({"render_mode": "rgb"}, ValueError, "render_mode `rgb`"),
    ],
    ids=str,
)
def test_bad_arguments_get_a_clear_error(kwargs: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Array2048Env(**kwargs)


@pytest.mark.parametrize("action", [1.0, "left", None, True, np.float32(1), np.array([1]), np.array(1.0)])
def test_an_action_that_is_no_integer_is_refused(action: Any) -> None:
    env = Array2048Env()
    env.reset(seed=0)
    with pytest.raises(TypeError, match="an action is an integer from 0"):
        env.step(action)
    assert env.turn == 0


@pytest.mark.parametrize("action", [-1, 4, np.int64(7), np.uint8(255)])
def test_an_action_out_of_range_is_refused(action: Any) -> None:
    env = Array2048Env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="from 0 \\(up\\) to 3 \\(left\\)"):
        env.step(action)
    assert env.turn == 0


@pytest.mark.parametrize("action", [1, np.int64(1), np.uint8(1), np.array(1)])
def test_any_integer_is_an_action(action: Any) -> None:
    env, other = Array2048Env(), Array2048Env()
    env.reset(seed=0)
    other.reset(seed=0)
    assert (env.step(action)[0] == other.step(1)[0]).all()


def test_bad_resets_get_a_clear_error() -> None:
    env = Array2048Env()
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(gym.error.Error, match="greater or equal to zero"):
        env.reset(seed=-1)
    with pytest.raises(ValueError, match="no option `splits` of reset; did you mean `split`"):
        env.reset(options={"splits": "test"})
    with pytest.raises(UnknownTask, match="tset"):
        env.reset(options={"split": "tset"})


def test_the_default_target_is_what_the_board_can_hold() -> None:
    assert Array2048Env().options.target == 2048
    assert Array2048Env(board_size=3).options.target == 1024
    assert Rules.of(3).size == 3
