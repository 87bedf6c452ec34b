"""A tiny policy, servers around it, clients, and a scheduler that answers with prepared texts."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from art_trainer.inference.generation import TokenSequence
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.slot_decoder import SlotDecoder
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.serving.agents import AgentServer
from art_trainer.serving.agents.sessions import Session
from art_trainer.serving.dialects import ServedPolicy, dialect_router
from art_trainer.serving.dialects.batch_scheduler import (
    BatchScheduler,
    GenerationJob,
    GenerationOutput,
    TokenRun,
)
from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.http.middleware import AccessPolicy, HostNames
from art_trainer.serving.http.server import ServerThread, create_app
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

TOKEN = "a token that is long enough"
CHAT = "/v1/chat/completions"

# Qwen's format of tools: definitions in front, calls and answers in tags.
TOOL_CHATML = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m['content'] }}\n</tool_response>"
    "<|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m.get('tool_calls') or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REFUSES_BOOM = "{% if messages[-1]['content'] == 'boom' %}{{ raise_exception('no boom') }}{% endif %}"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}


def tiny_policy(
    template: str = TOOL_CHATML,
    *,
    max_new_tokens: int = 12,
    max_context: int | None = None,
    max_batch: int = 256,
    **sampling: Any,
) -> TransformersPolicy:
    """A random model of 0.1 million weights."""
    return TransformersPolicy(
        tiny_model(),
        byte_tokenizer(template),
        sampling=SamplingParams(max_new_tokens=max_new_tokens, **sampling),
        max_context=max_context,
        max_batch=max_batch,
        name="tiny",
    )


class ScriptedScheduler(BatchScheduler):
    """Answers with prepared texts, in order, and keeps the jobs."""

    def __init__(self, policy: TransformersPolicy, texts: Sequence[str]) -> None:
        super().__init__(policy)
        self.close()
        self._chat = AgentChat(policy.tokenizer)
        self._texts = list(texts)
        self.jobs: list[GenerationJob] = []

    def submit(self, jobs: Sequence[GenerationJob]) -> None:
        for job in jobs:
            token_ids = [*self._chat.encode(self._texts.pop(0)), self._chat.end_of_turn]
            self.jobs.append(job)
            job.started_version = 0
            for token in token_ids[:-1]:
                job.append(token, -0.5, None)
            run = TokenRun(token_ids, [-0.5] * len(token_ids), [])
            job.result.set_result(GenerationOutput(run, stopped=True, hit_stop_string=False, version=0))

    def wait_idle(self, timeout: float) -> bool:
        return True

    def shown(self, number: int) -> str:
        """What the model was shown for a job."""
        return self._chat.decode(self.jobs[number].context)


@contextmanager
def serving(served: ServedPolicy) -> Iterator[str]:
    """The address of an OpenAI server for a policy."""
    app = create_app(AccessPolicy(HostNames("127.0.0.1"), 2**20, token=TOKEN), "OpenAI's API below /v1")
    app.include_router(dialect_router(served))
    thread = ServerThread(app, "127.0.0.1", 0, name="serving")
    try:
        yield thread.url
    finally:
        served.close()
        thread.stop()


@contextmanager
def openai_client(url: str, token: str = TOKEN, **options: Any) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=url, api_key=token, **{"max_retries": 0, **options}) as client:
        yield client


@contextmanager
def served_client(
    policy: TransformersPolicy | None = None, **options: Any
) -> Iterator[tuple[ServedPolicy, openai.OpenAI]]:
    """A tiny policy that is served, and OpenAI's client."""
    served = ServedPolicy(policy or tiny_policy(), **options)
    served._rng = np.random.default_rng(0)  # for requests without a seed
    with serving(served) as url, openai_client(f"{url}/v1") as client:
        yield served, client


@contextmanager
def scripted_client(*texts: str) -> Iterator[tuple[ScriptedScheduler, str, openai.OpenAI]]:
    """A served policy that answers with prepared texts, its address, and OpenAI's client."""
    served = ServedPolicy(tiny_policy())
    served.close()
    script = served._schedulers[-1] = ScriptedScheduler(served.scheduler.policy, texts)
    with serving(served) as url, openai_client(f"{url}/v1") as client:
        yield script, url, client


@contextmanager
def scripted_agent_server(
    *texts: str, policy: TransformersPolicy | None = None
) -> Iterator[tuple[AgentServer, Session]]:
    """An agent server that answers with prepared texts, and a session."""
    policy = policy or tiny_policy()
    with AgentServer(policy) as server:
        server.scheduler.close()
        server.scheduler = ScriptedScheduler(policy, texts)
        yield server, server.open()


@contextmanager
def agent_client(server: AgentServer, session: Session, **options: Any) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of a session."""
    with openai_client(server.base_url(session), session.token, **options) as client:
        yield client


@contextmanager
def plain_client(url: str, token: str = TOKEN) -> Iterator[httpx.Client]:
    """A plain HTTP client."""
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=300) as client:
        yield client


@contextmanager
def plain_agent_client(server: AgentServer, session: Session) -> Iterator[httpx.Client]:
    """A plain HTTP client; its paths begin at the episode."""
    with plain_client(f"{server.url}/episodes/{session.id}", session.token) as client:
        yield client


@contextmanager
def disconnecting(client: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[None]:
    """Send a request, and disconnect at the end without having read the response."""
    request = client.build_request("POST", path, json=body)
    line = http.client.HTTPConnection(request.url.host, request.url.port, timeout=300)
    with closing(line):
        line.request("POST", request.url.path, request.content, dict(request.headers))
        yield


def before_steps(monkeypatch: pytest.MonkeyPatch, act: Callable[[Sequence[TokenSequence]], object]) -> None:
    """Have something done with the sequences before each step of the decoder."""
    step = SlotDecoder.step

    def later(self: SlotDecoder, sequences: Sequence[TokenSequence]) -> None:
        act(sequences)
        step(self, sequences)

    monkeypatch.setattr(SlotDecoder, "step", later)


def hold_decoder(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the decoder extend no sequence until the event is set."""
    go_on = threading.Event()
    before_steps(monkeypatch, lambda _: go_on.wait(300))
    return go_on


def count_steps(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> list[int]:
    """Count the sequences that each step of the decoder extends from now on; make each last longer."""
    steps: list[int] = []
    before_steps(monkeypatch, lambda sequences: (steps.append(len(sequences)), time.sleep(seconds)))
    return steps


def user(content: str | list[Any]) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(client: openai.OpenAI, messages: str | list[Any] = "hello", **options: Any) -> Any:
    """A chat completion, for a list of messages or one of the user."""
    sent = [user(messages)] if isinstance(messages, str) else messages
    return client.chat.completions.create(**{"model": "tiny", "messages": sent} | options)


def content(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def collect(chunks: list[Any], index: int = 0) -> tuple[str, list[Any], list[int], str]:
    """A streamed choice's text, log-probs, token ids and finish reason."""
    text, logprobs, token_ids, finish = "", [], [], ""
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index == index:
                text += choice.delta.content or ""
                logprobs += choice.logprobs.content if choice.logprobs else []
                token_ids += choice.model_dump().get("token_ids") or []
                finish = choice.finish_reason or finish
    return text, logprobs, token_ids, finish
