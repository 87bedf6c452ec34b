"""An agent written with LangGraph and LangChain's OpenAI client, unchanged."""

from __future__ import annotations

import pytest

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from langchain_core.messages import HumanMessage

from art_trainer.agent_server import run_agents
from tests.art_trainer.agent_server.agent_helpers import client_of, puppet_server, tiny_policy, user
from tests.art_trainer.agent_server.graphs import graph_of


@pytest.mark.parametrize("streaming", [False, True])
def test_a_graph_with_tools_is_one_history_of_what_was_sampled(streaming: bool) -> None:
    call = 'Hm. <tool_call>{"name":"weather",   "arguments": {"town": "Köln"}}</tool_call>'
    with puppet_server(call, "It rains.") as (server, session):
        graph = graph_of(server.base_url(session), session.token, streaming=streaming)
        state = graph.invoke({"messages": [HumanMessage("rain in Köln?")]})
        with client_of(server, session) as client:  # the chat goes on in another framework
            assert client.models.list().data
        for reply in session.recording._in_order:
            assert reply.delivered
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert state["messages"][2].content == "rain in Köln"
    assert state["messages"][-1].content == "It rains."
    (history,) = session.recording.histories()
    text = server.policy.format.decode(history.token_ids)
    assert call + "<|im_end|>" in text
    assert "<tool_response>\nrain in Köln\n</tool_response>" in text


def test_groups_of_a_graphs_attempts_can_be_learned_from() -> None:
    def agent(base_url: str, api_key: str, task: str) -> float:
        state = graph_of(base_url, api_key).invoke({"messages": [HumanMessage(task)]})
        return float(len(state["messages"][-1].content))

    (group,) = run_agents(agent, ["hello"], tiny_policy(), attempts=2)
    assert group.whole, [episode.error for episode in group.episodes]
    assert all(len(episode.histories) == 1 for episode in group.episodes)
    assert group.episodes[0].tools[0]["function"]["name"] == "weather"
    assert user("hello")["content"] == group.episodes[0].observation
