"""An agent written with LangGraph and LangChain's OpenAI client; imported where these are installed."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode


@tool
def weather(town: str) -> str:
    """Say what the weather in a town is."""
    return f"rain in {town}"


def graph_of(base_url: str, api_key: str, model: str = "policy", **options: Any) -> Any:
    """A model that may call a tool, and the tool, in turns until the model calls no more."""
    speaker = ChatOpenAI(model=model, base_url=base_url, api_key=api_key, **options).bind_tools([weather])

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
