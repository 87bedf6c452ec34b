"""A served policy behind the guard of every server here, and clients of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from art_trainer.decoding import TokenSequence
from art_trainer.serving import ServedPolicy, openai_router
from art_trainer.serving.agent_chat import AgentChat
from art_trainer.serving.live_sampler import LiveSampler, Question, Sampled
from art_trainer.slot_decoder import SlotDecoder
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.web.app import guarded_app
from art_trainer.web.guard import Rules
from art_trainer.web.hosts import HostNames
from art_trainer.web.thread import ServerThread, listen
from tests.art_trainer.agent_server.agent_helpers import tiny_policy

TOKEN = "a token that is long enough"


@contextmanager
def serving(served: ServedPolicy) -> Iterator[str]:
    """The address of a server for the policy."""
    rules = Rules(HostNames("127.0.0.1"), 2**20, token=TOKEN)
    app = guarded_app(rules, "OpenAI's API below /v1")
    app.include_router(openai_router(served))
    listening = listen("127.0.0.1", 0)
    thread = ServerThread(app, listening, name="serving")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        served.close()
        thread.stop()


@contextmanager
def client_of(url: str, **options: Any) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, **{"max_retries": 0, **options}) as client:
        yield client


@contextmanager
def served_client(
    policy: TransformersPolicy | None = None, **options: Any
) -> Iterator[tuple[ServedPolicy, openai.OpenAI]]:
    """A tiny policy that is served, and OpenAI's client."""
    served = ServedPolicy(policy or tiny_policy(), rng_seed=0, **options)
    with serving(served) as url, client_of(url) as client:
        yield served, client


@contextmanager
def plain_client(url: str) -> Iterator[httpx.Client]:
    """A plain HTTP client with the token."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30) as client:
        yield client


def counted_steps(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> list[int]:
    """How many sequences each of the decoder's steps extends, from now on; and make each last longer."""
    steps: list[int] = []
    step = SlotDecoder.step

    def counting(self: SlotDecoder, sequences: Sequence[TokenSequence]) -> None:
        steps.append(len(sequences))
        time.sleep(seconds)
        step(self, sequences)

    monkeypatch.setattr(SlotDecoder, "step", counting)
    return steps


class Puppet(LiveSampler):
    """Says prepared texts, in order, and notes what it was asked."""

    def __init__(self, policy: TransformersPolicy, texts: Sequence[str]) -> None:
        super().__init__(policy)
        self._chat = AgentChat(policy.tokenizer)
        self._texts = list(texts)
        self.questions: list[Question] = []

    def ask_all(self, questions: Sequence[Question]) -> None:
        for question in questions:
            token_ids = (*self._chat.encode(self._texts.pop(0)), self._chat.end_of_turn)
            self.questions.append(question)
            question.sequence.tokens = [*question.context, *token_ids]
            for count in range(1, len(token_ids)):
                question.sampled_by = 0
                question.sequence.logprobs = [-0.5] * count
                if question.on_token is not None:
                    question.on_token(token_ids[:count])
            logprobs = (-0.5,) * len(token_ids)
            question.answer.set_result(Sampled(token_ids, logprobs, stopped=True, said_stop=False, version=0))


@contextmanager
def puppet_client(*texts: str) -> Iterator[tuple[Puppet, str, openai.OpenAI]]:
    """A served policy that says prepared texts, its address, and OpenAI's client."""
    served = ServedPolicy(tiny_policy(), rng_seed=0)
    served._newest.sampler.close()
    puppet = served._newest.sampler = Puppet(served._newest.policy, texts)
    with serving(served) as url, client_of(url) as client:
        yield puppet, url, client
