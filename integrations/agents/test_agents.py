"""Agents of other people, unchanged, whose model is the policy in training.

Each is run as a program by ``CommandAgent``, once for each attempt, and trained for real steps.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from art_trainer.config import GRPOConfig
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.envs import env_maker
from art_trainer.serving.agents import AgentBackend, AgentServer
from art_trainer.serving.agents.command import OUTPUT, Attempt, CommandAgent, Program
from art_trainer.serving.agents.environment import EnvCommandAgent, SeededTasks
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Episode, GroupSpec
from tests.art_trainer.serving.helpers import ScriptedScheduler, tiny_policy
from tests.art_trainer.tiny_models import tiny_model

# OpenAI's agents, whose loop asks by the Responses API and plays an environment through MCP.
OPENAI_AGENTS = """
import asyncio, os, sys
from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp

set_tracing_disabled(True)

async def main():
    token = {"Authorization": "Bearer " + os.environ["MCP_TOKEN"]}
    params = {"url": os.environ["MCP_URL"], "headers": token}
    async with MCPServerStreamableHttp(params=params) as game:
        agent = Agent(name="player", instructions="Play.", model="policy", mcp_servers=[game])
        try:
            print((await Runner.run(agent, sys.argv[1], max_turns=4)).final_output)
        except Exception as error:  # the model did not come to an end
            print(type(error).__name__, error)

asyncio.run(main())
"""
# Pydantic AI, whose loop asks by Anthropic's Messages API and has a tool of its own.
PYDANTIC_AI = """
import sys
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.anthropic import AnthropicModel

agent = Agent(AnthropicModel("policy"), instructions="Use the tool.")

@agent.tool_plain
def weather(town: str) -> str:
    \"\"\"The weather of a town.\"\"\"
    return f"rain in {town}"

try:
    said = agent.run_sync(sys.argv[1], usage_limits=UsageLimits(request_limit=3)).output
except Exception as error:
    said = type(error).__name__
open("said.txt", "w").write(said)
"""
BASH = "```mswea_bash_command\n{}\n```"


def program(tmp_path: Path, source: str) -> Program:
    """A program of this source."""
    file = tmp_path / "agent.py"
    file.write_text(textwrap.dedent(source))
    return Program(f"{sys.executable} {file} {{task}}", tmp_path / "attempts", timeout=240)


def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> Program:
    """mini-swe-agent, which LiteLLM connects, and which works by commands of a shell in its folder."""
    for name, value in {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path / "settings"),
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }.items():
        monkeypatch.setenv(name, value)
    given = [
        "--yolo", "--exit-immediately", "--model", "openai/policy", "--model-class", "litellm_textbased",
        "--config", "mini_textbased", "--task", "{task}", "--output", "trajectory.json",
    ]  # fmt: skip
    command = [str(Path(sys.executable).parent / "mini"), *given]
    return Program(shlex.join(command), tmp_path / "attempts", timeout=240)


def long_policy(**options: Any) -> TransformersPolicy:
    """A random model with room for what agents say to their models: a byte is a token."""
    policy = tiny_policy(**options)
    model = tiny_model(max_position_embeddings=2**15)
    return TransformersPolicy(model, policy.tokenizer, sampling=policy.sampling, name="policy")


def played(agent: Any, tasks: Any, *replies: str) -> Episode:
    """One attempt with prepared replies of the model."""
    policy = long_policy(max_new_tokens=400)
    with AgentServer(policy) as server:
        server.scheduler.close()
        server.scheduler = ScriptedScheduler(policy, replies)
        backend = AgentBackend(agent, tasks, policy, server=server)
        spec = GroupSpec(0, 1, (0,))
        ((episode,),) = (group.episodes for group in backend.collect([spec], on_episode=lambda _: None))
    return episode


def printed(tmp_path: Path) -> str:
    """What the first attempt's program printed."""
    return (tmp_path / "attempts/000000" / OUTPUT).read_text()


def trained(agent: Any, tasks: Any, folder: Path) -> list[dict[str, Any]]:
    """The metrics of two real steps of a random model."""
    policy = long_policy()
    config = GRPOConfig(
        output_dir=str(folder), max_steps=2, groups_per_step=1, num_generations=2, max_completion_length=8,
        learning_rate=1e-3, eval_steps=0,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    backend = AgentBackend(agent, tasks, policy)
    trainer = GRPOTrainer(policy, None, config, backend=backend)
    for _ in range(2):
        groups = trainer.collect_episodes()
        assert all(episode.error is None for group in groups for episode in group.episodes), groups
        rows.append(trainer.update_policy(groups))
    trainer.close()
    return rows


def capitals(attempt: Attempt) -> float:
    """A reward that a random model's attempts differ in."""
    said = "".join(m["content"] for talk in attempt.conversations for m in talk if m["role"] == "assistant")
    return sum("A" <= letter <= "Z" for letter in said) / (len(said) + 1)


def test_openai_agents_play_an_environment(tmp_path: Path) -> None:
    """OpenAI Agents SDK, on the Responses API: plays an environment through MCP, trained for two steps."""
    make_env = env_maker("art/2048-v0", {"max_turns": 3})
    agent = EnvCommandAgent(program(tmp_path, OPENAI_AGENTS), make_env, "art/2048-v0")
    episode = played(agent, SeededTasks({}), 'move("left")', 'move("up")', "I stop here.")
    assert episode.error is None, printed(tmp_path)
    assert [turn.reply for turn in episode.turns] == ['move("left")', 'move("up")', "I stop here."]
    assert len(episode.histories) == 1
    assert episode.metrics["turns"] == 2, printed(tmp_path)
    rows = trained(agent, SeededTasks({}), tmp_path / "run")
    assert all(row["num_tokens"] > 0 for row in rows)


def test_pydantic_ai_speaks_anthropics_dialect(tmp_path: Path) -> None:
    """Pydantic AI, on Anthropic's Messages API: its own tools, trained for two steps."""
    agent = CommandAgent(program(tmp_path, PYDANTIC_AI), capitals)
    episode = played(agent, ["Rain in Bonn?"], 'weather("Bonn")', "It RAINS.")
    assert episode.error is None, printed(tmp_path)
    assert [turn.reply for turn in episode.turns] == ['weather("Bonn")', "It RAINS."], printed(tmp_path)
    assert len(episode.histories) == 1
    assert episode.reward > 0
    assert (tmp_path / "attempts/000000/work/said.txt").read_text() == "It RAINS."
    rows = trained(agent, ["Rain in Bonn?", "And in Rome?"], tmp_path / "run")
    assert all(row["trained_tokens"] > 0 for row in rows)


def test_mini_swe_agent_works_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-swe-agent, a command-line agent: a shell in its folder, which is judged, trained for two steps."""
    seen: list[str] = []

    def reward(attempt: Attempt) -> float:
        made = attempt.folder / "answer.txt"
        seen.append(made.read_text() if made.exists() else "")
        return capitals(attempt)

    agent = CommandAgent(mini(tmp_path, monkeypatch), reward)
    submit = BASH.format("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    episode = played(agent, ["Write 42 to answer.txt."], BASH.format("echo 42 > answer.txt"), submit)
    assert episode.error is None, printed(tmp_path)
    assert seen == ["42\n"], printed(tmp_path)
    assert len(episode.histories) == 1
    rows = trained(agent, ["Write 42 to answer.txt."], tmp_path / "run")
    assert all(row["num_tokens"] > 0 for row in rows)
