from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from hypothesis import given
from hypothesis import strategies as st

from art_gym import Outcome, TextEnv, tool
from art_gym.wrappers.reward_terms import RewardClip, RewardScale, StepPenalty
from tests.art_gym.toys import CounterEnv

REPLIES = ["add(1)", "peek('count')", "?", "stop()"]


def rewards(wrap: Callable[[Any], Any]) -> list[tuple[float, dict[str, float]]]:
    env = wrap(CounterEnv())
    env.reset(seed=0, options={"task": "t9"})
    seen = []
    for reply in REPLIES:
        _, reward, _, _, info = env.step(reply)
        seen.append((reward, info["score_terms"]))
    return seen


def test_every_step_costs_the_penalty() -> None:
    assert rewards(lambda env: StepPenalty(env, 0.5)) == [
        (-0.5, {"step_penalty": -0.5}),
        (-0.51, {"peek": -0.01, "step_penalty": -0.5}),
        (-0.6, {"invalid_action": -0.1, "step_penalty": -0.5}),
        (-0.5, {"right": 0.0, "step_penalty": -0.5}),
    ]


def test_a_scale_goes_to_every_term() -> None:
    assert rewards(lambda env: RewardScale(env, -2)) == [
        (0.0, {}),
        (0.02, {"peek": 0.02}),
        (0.2, {"invalid_action": 0.2}),
        (0.0, {"right": 0.0}),
    ]


def test_a_clip_tells_what_it_cut_off_or_filled_up() -> None:
    assert rewards(lambda env: RewardClip(env, -0.05, -0.005)) == [
        (-0.005, {"clip": -0.005}),
        (-0.01, {"peek": -0.01}),
        (-0.05, {"invalid_action": -0.1, "clip": 0.05}),
        (-0.005, {"right": 0.0, "clip": -0.005}),
    ]
    assert rewards(RewardClip) == rewards(lambda env: env)


def test_environments_without_terms_get_one() -> None:
    env = StepPenalty(gym.make("CartPole-v1"), 0.25)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(0)
    assert (reward, info["score_terms"]) == (0.75, {"environment": 1.0, "step_penalty": -0.25})


class Paying(TextEnv):
    """Pays what is asked for, in two terms."""

    @tool
    def pay(self, one: float, other: float) -> Outcome:
        """Pay two terms.

        Args:
            one: The first.
            other: The second.
        """
        return Outcome("Paid.", {"one": one, "other": other})


AMOUNT = st.floats(-1e6, 1e6)


@given(one=AMOUNT, other=AMOUNT, penalty=st.floats(0, 1e6), scale=AMOUNT, bounds=st.tuples(AMOUNT, AMOUNT))
def test_the_terms_always_sum_to_the_reward(
    one: float, other: float, penalty: float, scale: float, bounds: tuple[float, float]
) -> None:
    low, high = sorted(bounds)
    env = RewardClip(RewardScale(StepPenalty(Paying(), penalty), scale), low, high)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(f"pay(one={one!r}, other={other!r})")
    expected = min(max(scale * (one + other - penalty), low), high)
    assert reward == sum(info["score_terms"].values())
    assert math.isclose(reward, expected, rel_tol=1e-9, abs_tol=1e-2)
    assert "error" not in info
