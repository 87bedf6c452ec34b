"""LiteLLM as a client, unchanged."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.art_trainer.serving.helpers import CALL, TOKEN, WEATHER, scripted_client

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
seen = {}
for provider in ("openai", "hosted_vllm"):
    answer = litellm.completion(model=provider + "/tiny", logprobs=True, **common)
    seen[provider] = [answer.choices[0].message.content, answer.usage.completion_tokens]
called = litellm.completion(model="openai/tiny", tools=[tool], **common).choices[0]
seen["call"] = [called.finish_reason, called.message.tool_calls[0].function.arguments]
chunks = litellm.completion(model="openai/tiny", stream=True, **common)
seen["stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
seen["async"] = asyncio.run(litellm.acompletion(model="openai/tiny", **common)).choices[0].message.content
try:
    litellm.completion(model="openai/tinny", **common)
except litellm.exceptions.NotFoundError as fault:
    seen["unknown"] = str(fault)
try:
    litellm.completion(model="openai/tiny", max_tokens=5000, **common)
except litellm.exceptions.ContextWindowExceededError as fault:
    seen["full"] = str(fault)
print("SEEN" + json.dumps(seen))
"""


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not installed")
def test_litellm_unchanged() -> None:
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "SERVED_TOKEN": TOKEN}
    with scripted_client("yes", "yes", CALL, "of course", "later") as (_, url, _):
        run = [sys.executable, "-c", _LITELLM, url, json.dumps(WEATHER)]
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.partition("SEEN")[2])
    assert seen["openai"] == seen["hosted_vllm"] == ["yes", 4]
    assert seen["call"] == ["tool_calls", '{"town": "Bonn"}']
    assert (seen["stream"], seen["async"]) == ("of course", "later")
    assert "did you mean" in seen["unknown"]
    assert "1024 tokens" in seen["full"]
