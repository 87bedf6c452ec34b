"""Whole episodes, in ``*/episodes.toml``: what is replied, shown and paid, turn by turn.

A turn is a reply, or a table of a ``reply`` and what comes of it: what is shown (``shows``, the whole or a
list of parts), the score ``terms``, the ``call`` that was understood, and a word of the ``error`` if the
reply is refused. A turn without ``terms`` pays nothing, one with an ``error`` costs the penalty for an
invalid action.

An episode that has a ``success`` is over with its last turn, by truncation if it has ``truncated``; any other
is not over. What it ``shows`` at first, its ``metrics``, its ``facts``, and what the rubric judge
makes of them (``judged`` in all, ``accuracy`` for the result alone) are compared if it has them.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_gym.env import TextEnv
from art_gym.envs.coding.env import CodingEnv
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.mail.env import EmailEnv
from art_gym.wrappers.judging.base import AttemptRecorder
from art_gym.wrappers.judging.rubric_judge import RubricJudge
from tests.envs.coding.tasks import PROBLEMS
from tests.envs.mail.boxes import FALCON_MAILS, FALCON_QUESTIONS, written

EPISODES = {
    f"{path.parent.name}: {episode['name']}": (path.parent.name, episode)
    for path in sorted(Path(__file__).parent.glob("*/episodes.toml"))
    for episode in tomllib.loads(path.read_text("utf-8"))["episode"]
}


@pytest.fixture(scope="module")
def make_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[..., TextEnv]]:
    """By folder what makes its environment."""
    mailbox = written(tmp_path_factory.mktemp("box") / "box.db", FALCON_MAILS).path
    return {
        "mail": lambda **options: EmailEnv(mailbox=mailbox, questions=FALCON_QUESTIONS, **options),
        "coding": lambda **options: CodingEnv(problems=PROBLEMS, **options),
        "game_2048": Game2048Env,
    }


def begin(env: TextEnv, episode: dict[str, Any]) -> AttemptRecorder:
    """Reset to the episode's task; in 2048 to its board."""
    options = {"task": episode["task"]} if "task" in episode else None
    observation, info = env.reset(seed=0, options=options)
    assert "shows" not in episode or observation == f"{info['system']}\n\n{episode['shows']}"
    recorder = AttemptRecorder()
    recorder.begin(observation, info)
    if isinstance(env, Game2048Env) and "board" in episode:
        env.board = env.rules.pack(episode["board"])
        env.legal = env.rules.legal(env.board)
    return recorder


def check_turn(
    turn: dict[str, Any], observation: str, reward: float, info: dict[str, Any], penalty: float
) -> None:
    shows = turn.get("shows", [])
    for part in [] if isinstance(shows, str) else shows:
        assert part in observation
    assert observation == shows or isinstance(shows, list)
    terms = {"invalid_action": -penalty} if "error" in turn else {}
    assert info["score_terms"] == pytest.approx(turn.get("terms", terms))
    assert reward == pytest.approx(sum(info["score_terms"].values()))
    assert turn.get("error", "") in info.get("error", {"message": ""})["message"]
    assert ("error" in info) == ("error" in turn)
    assert "call" not in turn or info["call"] == turn["call"]


@pytest.mark.parametrize("name", EPISODES)
def test_an_episode(
    name: str, make_env: dict[str, Callable[..., TextEnv]], request: pytest.FixtureRequest
) -> None:
    folder, episode = EPISODES[name]
    if folder == "coding":
        request.getfixturevalue("sandbox")
    env = make_env[folder](**episode.get("options", {}))
    recorder = begin(env, episode)
    for turn in [{"reply": turn} if isinstance(turn, str) else turn for turn in episode["turns"]]:
        assert not recorder.ended
        observation, reward, terminated, truncated, info = env.step(turn["reply"])
        recorder.add(turn["reply"], observation, reward, terminated, truncated, info)
        assert ("facts" in info) == recorder.ended
        check_turn(turn, observation, float(reward), info, env.invalid_action_penalty)
    assert recorder.ended == ("success" in episode)
    if recorder.ended:
        assert (truncated, info["success"]) == (episode.get("truncated", False), episode["success"])
        assert info["metrics"] == info["metrics"] | episode.get("metrics", {})
        attempt = recorder.attempt("a")
        score = RubricJudge().score(attempt)
        assert attempt.facts == info["facts"] == episode.get("facts", info["facts"])
        assert score.value == pytest.approx(episode.get("judged", score.value))
        accuracy = score.parts["accuracy"]
        assert accuracy == pytest.approx(episode.get("accuracy", accuracy))
