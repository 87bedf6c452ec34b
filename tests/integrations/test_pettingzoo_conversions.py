"""The two-player games in PettingZoo's own conversions and wrappers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import art_gym  # noqa: F401 (registers the environments)

pytest.importorskip("pettingzoo", reason='pip install "art-gym[pettingzoo]"')

import pettingzoo
from pettingzoo.utils import conversions, wrappers

SEED, PLIES = 3, 16
ID = "art/2048Duel-v0"


def game(kind: str = "aec", **options: Any) -> Any:
    return pettingzoo.make(kind, ID, **{"actions": "discrete", **options})


def played(env: Any, plies: int = PLIES) -> list[Any]:
    """Who moved, what was seen, reward and flags; played is the first legal choice, at odd plies the last."""
    env.reset(seed=SEED)
    met = []
    for ply in range(plies):
        if not env.agents:
            break
        seen, reward, terminated, truncated, _ = env.last()
        met.append((env.agent_selection, seen["text"], reward, terminated, truncated))
        legal = np.flatnonzero(seen["action_mask"])
        env.step(None if terminated or truncated else int(legal[-(ply % 2)]))
    return met


@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.BaseWrapper,
        wrappers.OrderEnforcingWrapper,
        wrappers.AssertOutOfBoundsWrapper,
        lambda env: wrappers.TerminateIllegalWrapper(env, illegal_reward=-1),
        lambda env: wrappers.MultiEpisodeEnv(env, 2),
    ],
    ids=["base", "order", "bounds", "illegal", "episodes"],
)
def test_wrappers_give_the_same_game(wrap: Any) -> None:
    """OrderEnforcing, AssertOutOfBounds, TerminateIllegal and MultiEpisode give the same game of a seed"""
    expected = played(game())
    assert len({seen for _, seen, *_ in expected}) > PLIES // 2
    assert played(wrap(game())) == expected


def test_an_illegal_move_ends_the_game_under_the_wrapper() -> None:
    """TerminateIllegal reads the game's action mask"""
    env = wrappers.TerminateIllegalWrapper(game(), illegal_reward=-1)
    env.reset(seed=SEED)
    while all(env.last()[0]["action_mask"]):
        env.step(0)
    offender = env.agent_selection
    env.step(int(np.flatnonzero(env.last()[0]["action_mask"] == 0)[0]))
    assert env.terminations[offender]
    assert env.rewards[offender] == -1


def test_the_parallel_game_is_the_same_and_goes_back() -> None:
    """the parallel environment, and `parallel_to_aec` of it, play the same game"""
    direct = [row[:2] for row in played(game(), 6)]
    env = game("parallel")
    seen, _ = env.reset(seed=SEED)
    texts = []
    for ply in range(6):
        mover = direct[ply][0]
        texts.append((mover, seen[mover]["text"]))
        legal = {name: np.flatnonzero(seen[name]["action_mask"]) for name in env.agents}
        actions = {name: int(found[-(ply % 2)]) if len(found) else 0 for name, found in legal.items()}
        seen, *_ = env.step(actions)
    assert texts == direct
    back = conversions.parallel_to_aec(game("parallel"))
    back.reset(seed=SEED)
    assert back.last()[0]["text"] == direct[0][1]


def test_films_of_a_game(tmp_path: Path) -> None:
    """RecordVideo writes a video of a duel and changes nothing"""
    videos = tmp_path / "videos"
    env = wrappers.RecordVideo(game(render_mode="rgb_array"), str(videos), episode_trigger=lambda _: True)
    assert played(env) == played(game())
    env.close()
    (film,) = videos.glob("*.mp4")
    assert film.stat().st_size > 1_000


def test_limit_a_game_of_turns_is_not_made_parallel_by_aec_to_parallel() -> None:
    """`aec_to_parallel` on a game of turns; make the registered parallel environment instead"""
    with pytest.raises(AssertionError, match="parallelizable"):
        conversions.aec_to_parallel(game())


def test_limit_what_is_printed_is_not_captured() -> None:
    """CaptureStdout's `render()` is empty: boards are printed as they come; make the game with `"ansi"`"""
    env = wrappers.CaptureStdoutWrapper(game(render_mode="human"))
    assert played(env) == played(game())
    assert env.render() == ""
    spoken = game(render_mode="ansi")
    spoken.reset(seed=SEED)
    assert "score" in spoken.render()
