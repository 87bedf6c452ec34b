"""An agent written with LangGraph and LangChain's OpenAI client, unchanged."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from tests.art_trainer.serving.helpers import scripted_agent_server


@tool
def weather(town: str) -> str:
    """Say what the weather in a town is."""
    return f"rain in {town}"


def graph_of(base_url: str, api_key: str, **options: Any) -> Any:
    """A model that may call a tool, and the tool, in turns until the model calls no more."""
    speaker = ChatOpenAI(model="policy", base_url=base_url, api_key=api_key, **options).bind_tools([weather])

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [speaker.invoke(state["messages"])]}

    def goes_on(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", goes_on, ["tools", END])
    graph.add_edge("tools", "think")
    return graph.compile()


@pytest.mark.parametrize("streaming", [False, True])
def test_a_graph_with_tools_is_one_history_of_what_was_sampled(streaming: bool) -> None:
    call = 'Hm. <tool_call>{"name":"weather",   "arguments": {"town": "Köln"}}</tool_call>'
    with scripted_agent_server(call, "It rains.") as (server, session):
        graph = graph_of(server.base_url(session), session.token, streaming=streaming)
        state = graph.invoke({"messages": [HumanMessage("rain in Köln?")]})
        assert all(reply.delivered for reply in session.recording._replies)
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert state["messages"][2].content == "rain in Köln"
    assert state["messages"][-1].content == "It rains."
    assert session.recording.first_tools[0]["function"]["name"] == "weather"
    (history,) = session.recording.histories()
    text = server.policy.format.decode(history.token_ids)
    assert call + "<|im_end|>" in text
    assert "<tool_response>\nrain in Köln\n</tool_response>" in text
