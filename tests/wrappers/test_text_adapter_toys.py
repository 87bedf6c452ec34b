from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from art_gym.wrappers.adapters import frozen_lake
from art_gym.wrappers.adapters.frozen_lake import FrozenLakeTextEnv, action_values, lake_tasks
from art_gym.wrappers.text_adapter import TextAdapter
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.evaluate import evaluate


def mean(env: Callable[[], TextAdapter], player: str, episodes: int) -> float:
    found = evaluate(ScriptedPolicy(player), env, split=None, episodes=episodes).reward
    assert found is not None
    return found.value


LAKE = FrozenLakeEnv(desc=lake_tasks(4, 0.8).get("test-3").data["map"])


def test_a_seed_gives_the_episode_that_it_gives_in_gymnasium() -> None:
    inside, outside, rng = FrozenLakeTextEnv(is_slippery=True), LAKE, np.random.default_rng(1)
    for seed in range(5):
        inside.reset(seed=seed, options={"task": "test-3"})
        outside.reset(seed=seed)
        terminated, turns = False, 0
        while not terminated and turns < 12:
            action, turns = int(rng.integers(len(frozen_lake.ACTIONS))), turns + 1
            seen, reward, terminated, _, _ = outside.step(action)
            text, paid, ended, *_ = inside.step(frozen_lake.ACTIONS[action])
            assert (paid, ended) == (reward, terminated)
            assert text.startswith(inside.describe(seen))


def test_maps_are_held_out_and_all_have_a_way() -> None:
    tasks = lake_tasks(4, 0.8)
    assert {split: len(tasks.split(split)) for split in tasks.splits} == frozen_lake.MAPS
    assert len({tuple(task.data["map"]) for task in tasks}) == len(tasks)
    for task in tasks.split("test"):
        lake = FrozenLakeEnv(desc=task.data["map"], is_slippery=False)
        assert action_values(lake.P)[0].max() > 0.9


def test_states_are_described() -> None:
    lake = FrozenLakeTextEnv()
    lake.reset(seed=0, options={"task": "test-0"})
    rows = lake.task.data["map"]
    lake.env.s = 0
    as_shown = str.maketrans({"S": " @", "F": " .", "H": " O", "G": " G"})
    assert lake.describe(0) == "\n".join(row.translate(as_shown) for row in rows)
    assert lake.describe("".join(rows).index("H")).endswith("\nYou fell into a hole.")


def test_the_lake_is_crossed_by_who_knows_the_way_and_hardly_by_chance() -> None:
    assert mean(FrozenLakeTextEnv, "optimal", 100) == 1
    assert mean(FrozenLakeTextEnv, "random", 200) < 0.05
    assert 0.03 < mean(FrozenLakeTextEnv, "right-down", 200) < 0.25
    lakes = [FrozenLakeEnv(desc=task.data["map"]) for task in lake_tasks(4, 0.8).split("test")]
    promised = float(np.mean([action_values(lake.P)[0].max() for lake in lakes[:100]]))
    slippery = mean(lambda: FrozenLakeTextEnv(is_slippery=True, max_turns=400), "optimal", 100)
    assert slippery == pytest.approx(promised, abs=0.13), "as good as its values say"


def test_training_may_start_anywhere_from_where_the_goal_can_be_reached() -> None:
    env = FrozenLakeTextEnv(start="anywhere")
    places = set()
    for seed in range(40):
        env.reset(seed=seed)
        assert action_values(env.env.P)[env.env.s].max() > 0
        places.add(env.place)
        again = FrozenLakeTextEnv(start="anywhere")
        again.reset(seed=seed)
        assert again.place == env.place
    assert len(places) > 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 3}, "size must be at least 4"),
        ({"start": "anywere"}, "did you mean `anywhere`"),
        ({"frozen": 0.999}, "hardly differ"),
    ],
)
def test_a_wrong_lake_is_refused_as_text(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FrozenLakeTextEnv(**arguments)
