"""A tiny policy, a server around it, and a sampler that says what a test wants said."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

import httpx
import openai

from art_trainer.agent_server import AgentServer
from art_trainer.agent_server.sessions import Session
from art_trainer.sampler import SamplingParams
from art_trainer.serving.agent_chat import AgentChat
from art_trainer.serving.live_sampler import LiveSampler, Question, Sampled
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

# Qwen's way with tools: definitions in front, calls and answers in tags.
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


class Puppet(LiveSampler):
    """Says prepared texts, in order, and notes the contexts it was asked with."""

    def __init__(self, policy: TransformersPolicy, texts: Sequence[str]) -> None:
        super().__init__(policy)
        self._chat = AgentChat(policy.tokenizer)
        self._texts = list(texts)
        self.contexts: list[list[int]] = []

    def ask(self, question: Question) -> Future[Sampled]:
        token_ids = [*self._chat.encode(self._texts.pop(0)), self._chat.end_of_turn]
        self.contexts.append(question.context)
        if question.on_token is not None:
            for count in range(1, len(token_ids)):
                question.on_token(token_ids[:count])
        question.answer.set_result(
            Sampled(tuple(token_ids), (-0.5,) * len(token_ids), stopped=True, said_stop=False, version=3)
        )
        return question.answer


@contextmanager
def puppet_server(
    *texts: str, policy: TransformersPolicy | None = None
) -> Iterator[tuple[AgentServer, Session]]:
    """A server whose policy says prepared texts, and a session."""
    policy = policy or tiny_policy()
    with AgentServer(policy) as server:
        server.sampler.close()
        server.sampler = Puppet(policy, texts)
        yield server, server.open()


@contextmanager
def client_of(server: AgentServer, session: Session, **options: Any) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(
        base_url=server.base_url(session), api_key=session.token, **{"max_retries": 0, **options}
    ) as client:
        yield client


@contextmanager
def plain_client(server: AgentServer, session: Session) -> Iterator[httpx.Client]:
    """A plain HTTP client; its paths begin at the episode."""
    with httpx.Client(
        base_url=f"{server.url}/episodes/{session.id}",
        headers={"authorization": f"Bearer {session.token}"},
        timeout=30,
    ) as client:
        yield client


@contextmanager
def asked(client: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[None]:
    """Ask, and hang up at the end without having read the answer."""
    request = client.build_request("POST", path, json=body)
    line = http.client.HTTPConnection(request.url.host, request.url.port, timeout=60)
    with closing(line):
        line.request("POST", request.url.path, request.content, dict(request.headers))
        yield


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}
