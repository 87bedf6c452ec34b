"""What holds for every wrapper: its spec makes it again, it changes what it says, it refuses wrong use."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_gym.wrappers import RecordEpisodes
from art_gym.wrappers.judging import Rubric
from art_gym.wrappers.judging.rubric_judge import RubricJudge
from art_gym.wrappers.rubric_reward import RubricReward
from tests.art_gym.toys import CounterEnv

JUDGE = RubricJudge(Rubric.of({"accuracy": 1.0}))
Wrap = Callable[..., gym.Env[str, str]]


@pytest.mark.parametrize(
    ("wrap", "arguments", "kept"),
    [
        (RecordEpisodes, {"path": "episodes.jsonl"}, {"path": Path("episodes.jsonl")}),
        (
            RubricReward,
            {"judge": JUDGE, "mode": "weighted", "weight": 0.25},
            {"judge": JUDGE, "shares": (0.75, 0.25)},
        ),
    ],
)
def test_its_spec_makes_it_again(wrap: Wrap, arguments: dict[str, Any], kept: dict[str, Any]) -> None:
    env = wrap(gym.make("art/2048-v0"), **arguments)
    assert env.spec is not None
    again = gym.make(env.spec)
    assert isinstance(again, type(env))
    assert {name: getattr(again, name) for name in kept} == kept


@pytest.mark.parametrize(
    "wrap",
    [lambda env, path: RecordEpisodes(env, path / "episodes.jsonl"), lambda env, path: RubricReward(env)],
    ids=("record", "rubric"),
)
def test_all_but_the_reward_is_as_in_the_environment(wrap: Wrap, tmp_path: Path) -> None:
    plain, env = CounterEnv(), wrap(CounterEnv(), tmp_path)
    assert env.reset(seed=3) == plain.reset(seed=3)
    for reply in ("add(1)", "peek('count')", "?", "stop()"):
        observation, reward, *flags, info = env.step(reply)
        own_observation, own_reward, *own_flags, own_info = plain.step(reply)
        assert (observation, flags) == (own_observation, own_flags)
        changed = {"score_terms", "independent_reward", "rubric"}
        assert {key: info[key] for key in info if key not in changed} == {
            key: own_info[key] for key in own_info if key not in changed
        }
        assert reward == pytest.approx(sum(info["score_terms"].values()))
        assert not isinstance(env, RecordEpisodes) or reward == own_reward


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean `add`"):
        RubricReward(CounterEnv(), mode="Add")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"from 0 to 1, not 1\.5"):
        RubricReward(CounterEnv(), weight=1.5)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "art_gym.games.aec", raising=False)
    with pytest.raises(ModuleNotFoundError, match=re.escape('pip install "art-gym[pettingzoo]"')):
        importlib.import_module("art_gym.games.aec")
