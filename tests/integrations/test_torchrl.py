"""TorchRL's GymEnv on text and array environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import pytest

from art_gym.servers.torchrl import register_text_space
from tests.integrations.episodes import MOVES, REPLIES, TEXT_IDS, played

pytest.importorskip("torchrl", reason="pip install torchrl")

import torch
from tensordict import TensorDictBase
from torchrl.data import Binary
from torchrl.envs import GymEnv, SerialEnv, default_info_dict_reader
from torchrl.envs.transforms import ActionMask, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs


@pytest.fixture(autouse=True)
def texts() -> None:
    register_text_space()


def inside(env: Any, seed: int, actions: Iterable[Any]) -> list[tuple[Any, float, bool, bool]]:
    """What ``played`` gives, in TorchRL."""
    data = env.reset(seed=seed)
    met = [(plain(data["observation"]), 0.0, False, False)]
    for action in actions:
        data["action"] = action
        data = env.step(data)["next"]
        ended = bool(data["terminated"]), bool(data["truncated"])
        met.append((plain(data["observation"]), float(data["reward"]), *ended))
        if any(ended):
            break
    return met


def plain(observation: Any) -> Any:
    return observation if isinstance(observation, str) else observation.tolist()


def saying(*replies: str) -> Callable[[TensorDictBase], TensorDictBase]:
    def policy(tensordict: TensorDictBase) -> TensorDictBase:  # TorchRL goes by the argument's name
        return tensordict.set("action", list(replies) if len(replies) > 1 else replies[0])

    return policy


@pytest.mark.parametrize("env_id", TEXT_IDS)
def test_the_same_seed_gives_the_same_text_episode(env_id: str) -> None:
    """text environments in `GymEnv`: the same seed gives the same episode"""
    found = inside(GymEnv(env_id, max_turns=6), 3, REPLIES)
    expected = played(gym.make(env_id, max_turns=6), 3, REPLIES)
    assert [turn[0] for turn in found] == [turn[0] for turn in expected]
    assert [turn[1] for turn in found] == pytest.approx([turn[1] for turn in expected])
    assert [turn[2:] for turn in found] == [turn[2:] for turn in expected]
    assert found[-1][3] is True


def test_the_same_seed_gives_the_same_game_in_arrays() -> None:
    """the array environment in `GymEnv`: the same seed gives the same game"""
    env = GymEnv("art/2048Array-v0", categorical_action_encoding=True)
    moves = [torch.tensor(move) for move in MOVES]
    assert inside(env, 3, moves) == played(gym.make("art/2048Array-v0"), 3, MOVES)


@pytest.mark.parametrize("env_id", [*TEXT_IDS, "art/2048Array-v0"])
def test_torchrl_finds_nothing_wrong(env_id: str) -> None:
    """`check_env_specs` on text and array environments"""
    check_env_specs(GymEnv(env_id))


def test_texts_go_through_rollouts_and_transforms() -> None:
    """`rollout` with a policy of texts, under `StepCounter` and `RewardSum`"""
    env = TransformedEnv(GymEnv("art/2048-v0", max_turns=5))
    env.append_transform(StepCounter())
    env.append_transform(RewardSum())
    found = env.rollout(9, saying("left"))
    assert found.shape == (5,)
    assert list(found["action"]) == ["left"] * 5
    assert all(isinstance(text, str) and "score" in text for text in found["next", "observation"])
    assert found["next", "step_count"].flatten().tolist() == [1, 2, 3, 4, 5]
    assert float(found["next", "episode_reward"][-1]) == float(found["next", "reward"].sum())
    assert found["next", "truncated"].flatten().tolist() == [False] * 4 + [True]


def test_several_text_environments_at_once() -> None:
    """several text environments at once in `SerialEnv`"""
    env = SerialEnv(2, lambda: GymEnv("art/2048-v0"))
    found = env.rollout(4, saying("left", "up"))
    assert found.shape == (2, 4)
    assert [list(row) for row in found["action"]] == [["left"] * 4, ["up"] * 4]
    env.close()


def test_action_masks_keep_random_play_legal() -> None:
    """`ActionMask`, with the mask read from `info`"""
    env = GymEnv("art/2048Array-v0", board_size=3)
    env.set_info_dict_reader(default_info_dict_reader(["action_mask"], spec=[Binary(4, dtype=torch.int8)]))
    masked = TransformedEnv(env, ActionMask(action_key="action", mask_key="action_mask"))
    found = masked.rollout(1_000)
    assert bool(found["next", "terminated"][-1])
    chosen = found["action_mask"].gather(1, found["action"].argmax(1, keepdim=True))
    assert chosen.all()


def test_limit_set_seed_begins_with_the_second_episode() -> None:
    """`set_seed(3)` and then `reset()` give the seed's second episode; `reset(seed=3)` gives the first"""
    env, outside = GymEnv("art/2048-v0"), gym.make("art/2048-v0")
    env.set_seed(3)
    first, second = outside.reset(seed=3)[0], outside.reset()[0]
    assert env.reset()["observation"] == second != first
    assert env.reset(seed=3)["observation"] == first


def test_limit_infos_that_are_no_arrays_need_a_reader() -> None:
    """`auto_register_info_dict()`: infos that are no NumPy values stop it; name keys in a reader"""
    env = GymEnv("art/2048-v0")
    with pytest.raises(AttributeError, match="dtype"):
        env.auto_register_info_dict()


def test_what_is_missing_is_named() -> None:
    """without TorchRL the error names the `pip install`"""
    code = "import sys, art_gym.servers.torchrl as t; sys.modules['torchrl'] = None; t.register_text_space()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "this needs TorchRL: pip install torchrl" in found.stderr.splitlines()[-1]
