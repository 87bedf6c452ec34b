"""Agents that end in ways that a thread does not speak of."""

import asyncio
import sys
from typing import Any

import pytest

from art_trainer.agent_server import AgentRollouts
from art_trainer.agent_server.rollouts import AgentLimits
from tests.art_trainer.agent_server.agent_helpers import tiny_policy


def leave(base_url: str, api_key: str, task: str) -> float:
    sys.exit("nothing to do")


async def give_up(base_url: str, api_key: str, task: str) -> float:
    raise asyncio.CancelledError("somebody did")


@pytest.mark.parametrize(
    ("agent", "words"), [(leave, "SystemExit: nothing to do"), (give_up, "CancelledError")]
)
def test_an_agent_that_exits_has_crashed_and_nobody_waits_for_its_time_to_be_over(
    agent: Any, words: str
) -> None:
    with AgentRollouts(agent, tiny_policy(), attempts=1, limits=AgentLimits(timeout=60)) as rollouts:
        (group,) = rollouts.play(["a task"])
    (episode,) = group.episodes
    assert episode.facts["outcome"] == "crashed", "else it was waited for until it had timed out"
    assert words in (episode.error or "")
