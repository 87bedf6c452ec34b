"""Other people's clients, unchanged: litellm, and LangGraph with LangChain's OpenAI client."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.art_trainer.agent_server.agent_helpers import WEATHER
from tests.art_trainer.serving.serving_helpers import TOKEN, puppet_client

CALL = 'Hm. <tool_call>{"name": "weather", "arguments": {"town": "Bonn"}}</tool_call>'

# In a process of its own: importing it takes seconds, warns, and looks for prices on the network.
_LITELLM = """
import asyncio, json, os, sys
import litellm

litellm.num_retries = 0
url, tool = sys.argv[1], json.loads(sys.argv[2])
common = {
    "api_base": url + "/v1",
    "api_key": os.environ["SERVED_TOKEN"],
    "messages": [{"role": "user", "content": "rain?"}],
}
told = {}
for provider in ("openai", "hosted_vllm"):
    answer = litellm.completion(model=provider + "/tiny", logprobs=True, **common)
    told[provider] = [answer.choices[0].message.content, answer.usage.completion_tokens]
called = litellm.completion(model="openai/tiny", tools=[tool], **common).choices[0]
told["call"] = [called.finish_reason, called.message.tool_calls[0].function.arguments]
chunks = litellm.completion(model="openai/tiny", stream=True, **common)
told["stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
told["async"] = asyncio.run(litellm.acompletion(model="openai/tiny", **common)).choices[0].message.content
try:
    litellm.completion(model="openai/tinny", **common)
except litellm.exceptions.NotFoundError as fault:
    told["unknown"] = str(fault)
try:
    litellm.completion(model="openai/tiny", max_tokens=5000, **common)
except litellm.exceptions.ContextWindowExceededError as fault:
    told["full"] = str(fault)
print("TOLD" + json.dumps(told))
"""


@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not installed")
def test_litellm_unchanged() -> None:
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "SERVED_TOKEN": TOKEN}
    with puppet_client("yes", "yes", CALL, "of course", "later") as (_, url, _):
        run = [sys.executable, "-c", _LITELLM, url, json.dumps(WEATHER)]
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.partition("TOLD")[2])
    assert told["openai"] == told["hosted_vllm"] == ["yes", 4]
    assert told["call"] == ["tool_calls", '{"town": "Bonn"}']
    assert (told["stream"], told["async"]) == ("of course", "later")
    assert "did you mean" in told["unknown"]
    assert "1024 tokens" in told["full"]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_graph_with_tools_goes_round(streaming: bool) -> None:
    pytest.importorskip("langgraph")
    pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage

    from tests.art_trainer.agent_server.graphs import graph_of

    with puppet_client(CALL, "It rains.") as (puppet, url, _):
        graph = graph_of(f"{url}/v1", TOKEN, model="tiny", streaming=streaming)
        state = graph.invoke({"messages": [HumanMessage("rain in Bonn?")]})
        shown = puppet._chat.decode(puppet.questions[1].context)
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert state["messages"][-1].content == "It rains."
    assert '{"name": "weather", "arguments": {"town": "Bonn"}}' in shown
    assert "<tool_response>\nrain in Bonn\n</tool_response>" in shown
