"""Agents that are programs: tasks, folders, limits and rewards; environments that they play through MCP."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from art_trainer.errors import ConfigError
from art_trainer.rollout.envs import env_maker
from art_trainer.serving.agents import AgentBackend, AgentLimits, AgentServer
from art_trainer.serving.agents.command import (
    OUTPUT,
    Attempt,
    CommandAgent,
    Program,
    RewardFunction,
    load_reward,
    read_tasks,
)
from art_trainer.serving.agents.environment import EnvCommandAgent, SeededTasks
from art_trainer.types import Ending, Episode, GroupSpec
from tests.art_trainer.serving.helpers import ScriptedScheduler, tiny_policy
from tests.art_trainer.waiting import until

ASK = """
import json, os, sys, urllib.error, urllib.request

def ask(*texts):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    body = json.dumps({"messages": [{"role": "user", "content": text} for text in texts]}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
PLAY = """
import asyncio, httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def play():
    headers = {"authorization": "Bearer " + os.environ["MCP_TOKEN"]}
    for _ in range(2):  # two sessions play one episode
        async with httpx2.AsyncClient(headers=headers) as http:
            async with Client(streamable_http_client(os.environ["MCP_URL"], http_client=http)) as client:
                direction = await asyncio.to_thread(ask, sys.argv[1])
                print((await client.call_tool("move", {"direction": direction})).content[0].text)

asyncio.run(play())
"""
ONE = [GroupSpec(0, 1, (0,))]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a program; gives the command that runs it."""

    def writing(source: str) -> str:
        file = tmp_path / "agent.py"
        file.write_text(ASK + textwrap.dedent(source))
        return f"{sys.executable} {file} {{task}}"

    return writing


@pytest.fixture
def play() -> Iterator[Callable[..., Episode]]:
    """Let an agent play one attempt, with prepared replies of the model."""
    opened: list[Any] = []

    def playing(agent: Any, tasks: Any, *replies: str, timeout: float = 90) -> Episode:
        policy = tiny_policy()
        server = AgentServer(policy)
        server.scheduler.close()
        server.scheduler = ScriptedScheduler(policy, replies)
        opened.append(server)
        backend = AgentBackend(agent, tasks, policy, server=server, limits=AgentLimits(timeout=timeout))
        ((episode,),) = (group.episodes for group in backend.collect(ONE, on_episode=lambda _: None))
        return episode

    yield playing
    for server in opened:
        server.close()


@pytest.fixture
def run(tmp_path: Path, play: Any) -> Callable[..., Episode]:
    def running(
        command: str, *, reward: RewardFunction = lambda _: 1.0, task: Any = "hello", timeout: float = 60
    ) -> Episode:
        agent = CommandAgent(Program(command, tmp_path / "attempts", timeout=timeout), reward)
        episode: Episode = play(agent, [task], "fine")
        return episode

    return running


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_program_gets_its_task_its_url_and_a_folder(write: Any, run: Any) -> None:
    seen: list[Attempt] = []

    def reward(attempt: Attempt) -> dict[str, Any]:
        seen.append(attempt)
        return {"reward": 0.5, "success": True, "metrics": {"lines": 1}}

    source = "open('said', 'w').write(ask(sys.argv[1])); print(sys.argv[1:], os.environ); sys.exit(3)"
    task = {"id": "t7", "level": 2, "text": "hi", "answer": "unknown to the program"}
    command = write(source).replace("{task}", "{text} {level}")
    episode = run(command, task=task, reward=reward)
    (attempt,) = seen
    assert (attempt.folder / "said").read_text() == "fine"
    assert (attempt.exit_code, attempt.task) == (3, task)
    assert attempt.output.startswith("['hi', '2']")
    assert task["answer"] not in attempt.output
    ((asked, answered),) = attempt.conversations
    assert asked == {"role": "user", "content": "hi"}
    assert answered == {"role": "assistant", "content": "fine"}
    assert (episode.reward, episode.success, episode.metrics) == (0.5, True, {"lines": 1})
    assert (episode.task_id, episode.facts["outcome"]) == ("t7", "rewarded")
    assert [turn.reply for turn in episode.turns] == ["fine"]


@pytest.mark.parametrize(
    ("source", "options", "outcome", "error"),
    [
        ("import time; ask('x'); time.sleep(60)", {"timeout": 0.9}, "timed_out", "ran for 0.9 s"),
        ("ask('x'); 1 / 0", {"reward": lambda _: None}, "crashed", "exit code 1: ZeroDivisionError"),
        ("ask('x')", {"reward": lambda _: float("nan")}, "crashed", "finite"),
        ("ask('x')", {"reward": lambda _: {"points": 1}}, "crashed", "points"),
        ("pass", {}, "crashed", "does it read OPENAI_BASE_URL"),
    ],
    ids=["time limit", "a crash", "not a number", "an unknown field", "no request"],
)
def test_each_failure_has_a_name(
    source: str, options: dict[str, Any], outcome: str, error: str, write: Any, run: Any
) -> None:
    episode = run(write(source), **options)
    assert episode.facts["outcome"] == outcome
    assert error in str(episode.error)
    assert episode.ending == Ending.ENV_ERROR


def test_a_program_cannot_set_its_own_reward(write: Any, run: Any) -> None:
    source = """
    ask("x")
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/reward"
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    try:
        urllib.request.urlopen(urllib.request.Request(url, b'{"reward": 100}', headers))
    except urllib.error.HTTPError as error:
        print(error.code)
    """
    printed: list[str] = []

    def reward(attempt: Attempt) -> float:
        printed.append(attempt.output)
        return 0.25

    assert run(write(source), reward=reward).reward == 0.25
    assert printed == ["403\n"]


def test_a_relative_program_and_a_resumed_run(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\nexec {sys.executable} $1")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "attempts" / "000041").mkdir(parents=True)  # older ones were deleted
    monkeypatch.chdir(tmp_path)
    with AgentServer(tiny_policy()) as server:
        session = server.open()
        program = Program("./run.sh agent.py", tmp_path / "attempts", timeout=300)
        attempt = program.run(server.base_url(session), session.token, "x")
    assert (attempt.exit_code, attempt.output) == (0, "")
    assert attempt.folder.parent.name == "000042"


def test_what_a_program_leaves_running_is_killed(write: Any, run: Any, tmp_path: Path) -> None:
    source = """
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open("child.pid", "w").write(str(child.pid))
    ask("x")
    """
    run(write(source))
    (folder,) = (tmp_path / "attempts").iterdir()
    assert (folder / OUTPUT).read_text() == ""
    child = int((folder / "work" / "child.pid").read_text())
    until(lambda: not alive(child))


def test_closing_kills_the_programs_that_run(write: Any, tmp_path: Path, play: Any) -> None:
    program = Program(write("import time; time.sleep(600)"), tmp_path / "attempts", timeout=600)
    episode = play(CommandAgent(program, lambda _: 1.0), ["x"], timeout=0.5)
    assert episode.facts["outcome"] == "timed_out"
    (running,) = program._running
    program.close()
    until(lambda: not alive(running.pid))


def test_an_environment_is_played_through_mcp_and_pays(write: Any, tmp_path: Path, play: Any) -> None:
    program = Program(write(PLAY), tmp_path / "attempts", timeout=300)
    make_env = env_maker("art/2048-v0", {"max_turns": 2})
    episode = play(EnvCommandAgent(program, make_env, "art/2048-v0"), SeededTasks({}), "left", "up")
    printed = (tmp_path / "attempts/000000" / OUTPUT).read_text()
    assert episode.error is None, printed
    assert (episode.env_id, episode.task_id) == ("art/2048-v0", "seed-0")
    assert [turn.reply for turn in episode.turns] == ["left", "up"]
    assert (episode.ending, episode.metrics["turns"]) == (Ending.TRUNCATED, 2)
    with make_env() as env:
        env.reset(seed=0)
        steps = [env.step(f'move("{direction}")') for direction in ("left", "up")]
    assert episode.reward == pytest.approx(sum(step[1] for step in steps))
    assert str(steps[0][0]) in printed


def test_mistakes_are_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no program 'no-such-agent'"):
        Program("no-such-agent {task}", tmp_path, timeout=1)
    with pytest.raises(ConfigError, match="No closing quotation"):
        Program("python 'x", tmp_path, timeout=1)
    with pytest.raises(ConfigError, match=r"has \{kind\}, but a task has only \{task\}, \{level\}"):
        Program("python {kind}", tmp_path, timeout=1).arguments({"level": 1})
    (tmp_path / "without.py").write_text("x = 1")
    (tmp_path / "raises.py").write_text("1 / 0")
    for name, named in (("without", "no function"), ("raises", "ZeroDivisionError"), ("other", "no such")):
        with pytest.raises(ConfigError, match=named):
            load_reward(tmp_path / f"{name}.py")
    tasks = tmp_path / "tasks.jsonl"
    for text, named in (("\n", "no task"), ('{"a": 1}\n{"b": ', "line 2"), (None, "No such file")):
        tasks.unlink(missing_ok=True) if text is None else tasks.write_text(text)
        with pytest.raises(ConfigError, match=named):
            read_tasks(tasks)
    tasks.write_text('plain\n\n{"a": 1}\n"quoted"\n')
    assert read_tasks(tasks) == ["plain", {"a": 1}, "quoted"]
