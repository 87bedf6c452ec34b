import json
from pathlib import Path
from typing import Any

import pytest

from art_gym.wrappers import RecordEpisodes
from tests.art_gym.toys import CounterEnv, EchoEnv


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_finished_episode_is_one_line_with_every_turn(tmp_path: Path) -> None:
    env = RecordEpisodes(CounterEnv(), tmp_path / "new" / "episodes.jsonl")
    observation, _ = env.reset(seed=4, options={"task": "t2"})
    first = env.step("add(1)")
    env.step("no such \ud800 thing")
    last = env.step("stop()")
    (line,) = lines(env.path)
    assert line["task_id"] == "t2"
    assert line["seed"] == 4
    assert line["observation"] == observation
    assert [turn["reply"] for turn in line["turns"]] == ["add(1)", "no such \ud800 thing", "stop()"]
    assert line["turns"][0]["observation"] == first[0]
    assert line["turns"][0]["call"] == {"name": "add", "arguments": {"amount": 1}}
    assert line["turns"][1]["error"]["kind"] == "no_call"
    assert line["reward"] == pytest.approx(sum(turn["reward"] for turn in line["turns"]))
    assert (line["terminated"], line["truncated"]) == (True, False)
    assert line["success"] is last[4]["success"]
    assert line["facts"] == last[4]["facts"]


def test_an_abandoned_episode_is_written_and_an_unplayed_one_is_not(tmp_path: Path) -> None:
    env = RecordEpisodes(CounterEnv(), tmp_path / "episodes.jsonl")
    env.reset(seed=0)
    env.step("add(1)")
    env.reset(seed=1)
    env.close()
    (line,) = lines(env.path)
    assert (line["terminated"], line["truncated"], line["success"]) == (False, False, None)


def test_an_env_without_our_info_is_recorded_with_nulls(tmp_path: Path) -> None:
    env = RecordEpisodes(EchoEnv(), tmp_path / "e.jsonl")
    env.reset()
    env.step("end")
    (line,) = lines(env.path)
    assert line["task_id"] is None
    assert line["turns"][0]["score_terms"] is None
    assert (line["terminated"], line["truncated"]) == (True, False)
