"""Gymnasium's own wrappers and vector modes on the registered environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import wrappers

from tests.integrations.episodes import MOVES, REPLIES, played

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
TURNS, SEED = 6, 11
CASES = [("art/2048-v0", REPLIES), ("art/Email-v0", REPLIES), ("art/2048Array-v0", MOVES)]
each_env = pytest.mark.parametrize(("env_id", "actions"), CASES, ids=[env_id for env_id, _ in CASES])


def outside(env_id: str, actions: Any) -> list[tuple[Any, float, bool, bool]]:
    return played(gym.make(env_id, max_turns=TURNS), SEED, actions)


def make(env_id: str) -> gym.Env[Any, Any]:
    return gym.make(env_id, max_turns=TURNS)


@each_env
def test_wrappers_that_pass_everything_on(env_id: str, actions: Any) -> None:
    """OrderEnforcing, PassiveEnvChecker, Autoreset and TimeLimit change nothing in an episode of a seed"""
    env: gym.Env[Any, Any] = make(env_id)
    for wrap in (wrappers.PassiveEnvChecker, wrappers.OrderEnforcing):
        env = wrap(env)
    env = wrappers.Autoreset(wrappers.TimeLimit(env, 100))
    assert played(env, SEED, actions) == outside(env_id, actions)


@each_env
def test_statistics_of_episodes(env_id: str, actions: Any) -> None:
    """RecordEpisodeStatistics: return and length of text and array episodes"""
    env = wrappers.RecordEpisodeStatistics(make(env_id))
    expected = outside(env_id, actions)
    env.reset(seed=SEED)
    for action in actions[:TURNS]:
        *_, info = env.step(action)
    assert info["episode"]["l"] == TURNS
    assert info["episode"]["r"] == pytest.approx(sum(reward for _, reward, *_ in expected))


@each_env
def test_frames_are_stacked(env_id: str, actions: Any) -> None:
    """FrameStackObservation: the last observations together"""
    env = wrappers.FrameStackObservation(make(env_id), 2)
    expected = [row[0] for row in outside(env_id, actions)]
    pairs = zip([expected[0], *expected], expected, strict=False)
    found = [row[0] for row in played(env, SEED, actions)]
    assert [list(frames) for frames in found] == [list(pair) for pair in pairs]


@each_env
def test_observations_tell_the_time(env_id: str, actions: Any) -> None:
    """TimeAwareObservation(flatten=False) beside texts and boards"""
    env = wrappers.TimeAwareObservation(make(env_id), flatten=False)
    assert env.max_timesteps == TURNS
    assert gym.spec(env_id).max_episode_steps is None, "it would be a TimeLimit for any max_turns"
    assert len(played(gym.make(env_id, max_turns=9), SEED, [actions[3]] * 12)) == 10
    assert env.spec is not None
    assert played(gym.make(env.unwrapped.spec), SEED, actions) == outside(env_id, actions)
    seen, _ = env.reset(seed=SEED)
    times = [int(seen["time"][0])]
    for action in actions[:TURNS]:
        times.append(int(env.step(action)[0]["time"][0]))
        assert seen in env.observation_space
    assert times == list(range(TURNS + 1))


@pytest.mark.parametrize(("env_id", "actions"), [CASES[0], CASES[2]], ids=["text", "array"])
def test_videos_of_2048(env_id: str, actions: Any, tmp_path: Path) -> None:
    """RecordVideo on 2048, as text and as arrays, writes a video and changes nothing"""
    env = gym.make(env_id, max_turns=TURNS, render_mode="rgb_array")
    video = wrappers.RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda _: True)
    assert played(video, SEED, actions) == outside(env_id, actions)
    video.close()
    (film,) = (tmp_path / "videos").glob("*.mp4")
    assert film.stat().st_size > 1_000
