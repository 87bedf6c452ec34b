"""Policy of a server with OpenAI's chat API: vLLM, llama.cpp, OpenAI itself.

Requests run in threads, many at one time. A native tool call in an answer is written into the reply as text,
in a format that the environments' parser reads.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import openai

from art_gym.closing import CloseOnExit
from art_gym.parsing.formats import write_call
from art_gym.wrappers.judging.http_client import first_choice
from art_gym.wrappers.judging.prompt import printable
from art_trainer.inference.policy import Conversation, Reply
from art_trainer.models.chat_template import apply_history_window
from art_trainer.signals import first_completed
from art_trainer.types import TokenHistory

_SEED_LIMIT = 2**31


class OpenAIPolicy(CloseOnExit):
    """Requests replies from a chat API; a :class:`~art_trainer.inference.policy.Policy` without tokens.

    A request that fails for good ends its own episode as a policy error.

    Args:
        model: The model's name on the server.
        base_url: Such as ``http://localhost:8000/v1``; by default OpenAI's, or ``OPENAI_BASE_URL``.
        api_key: By default ``OPENAI_API_KEY``; most local servers take any.
        max_concurrency: Most requests in flight at one time.
        temperature: Sampling temperature; ``None`` leaves it to the server.
        top_p: Nucleus sampling; ``None`` leaves it to the server.
        max_new_tokens: Most tokens of a reply.
        timeout: Seconds of silence from the server that end an attempt.
        max_retries: Attempts after the first, with growing pauses, if the server is busy or broken.
        send_tools: Whether to send the tools' schemas, for servers that accept them. The instructions keep
            their own list, since many a server drops schemas that its chat template has no place for.
        send_seed: Whether each request carries a seed drawn from the conversation's randomness.
        extra_body: Further fields of the request that the server knows.
        history_window: How many turns the model sees, the present one included; ``None`` for all.
        name: What reports call the policy.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        max_concurrency: int = 16,
        temperature: float | None = 1.0,
        top_p: float | None = None,
        max_new_tokens: int = 1024,
        timeout: float = 120.0,
        max_retries: int = 3,
        send_tools: bool = True,
        send_seed: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        history_window: int | None = None,
        name: str | None = None,
    ) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {max_concurrency}")
        if history_window is not None and history_window < 1:
            raise ValueError(f"history_window must be at least 1, got {history_window}")
        if api_key is None and base_url is not None:
            api_key = "none"  # the client requires one, a local server does not
        self.model = model
        self.name = name or f"openai:{model}"
        self.version = 0
        self._client = openai.OpenAI(
            base_url=base_url, api_key=api_key, timeout=timeout, max_retries=max_retries
        )
        self._options: dict[str, Any] = {
            "max_completion_tokens": max_new_tokens,
            **({} if temperature is None else {"temperature": temperature}),
            **({} if top_p is None else {"top_p": top_p}),
            **({} if extra_body is None else {"extra_body": dict(extra_body)}),
        }
        self._history_window = history_window
        self._send_tools = send_tools
        self._send_seed = send_seed
        self._pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="openai-policy")
        self._in_flight: dict[Future[Reply], Conversation] = {}

    def submit(self, conversation: Conversation) -> None:
        """Send a request for the next reply."""
        messages = list(apply_history_window(conversation.messages, self._history_window))
        request = {"model": self.model, "messages": messages, **self._options}
        if conversation.tools and self._send_tools:
            request["tools"] = [dict(tool) for tool in conversation.tools]
        if self._send_seed:
            request["seed"] = int(conversation.rng.integers(_SEED_LIMIT))
        self._in_flight[self._pool.submit(self._request, request)] = conversation

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Wait for at least one answer, and return those that have come."""
        answers = []
        for future in first_completed(self._in_flight):
            conversation, reply = self._in_flight.pop(future), future.result()
            if reply.error is None:
                conversation.messages.append({"role": "assistant", "content": reply.text})
            answers.append((conversation, reply))
        return answers

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Drop the conversation's request, if one is in flight; there are no tokens."""
        for future in [future for future, owner in self._in_flight.items() if owner is conversation]:
            future.cancel()
            del self._in_flight[future]
        return ()

    def close(self) -> None:
        """Close threads and connections without waiting for requests in flight."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _request(self, request: dict[str, Any]) -> Reply:
        server = self._client.base_url
        try:
            answer = self._client.chat.completions.with_raw_response.create(**request)
            return _reply_of(answer.content)
        except openai.APITimeoutError:
            return Reply("", error=f"no answer within {self._client.timeout} s from {server}")
        except openai.APIStatusError as fault:
            return Reply("", error=f"{server} answered {fault.status_code}: {fault.message}")
        except openai.OpenAIError as fault:
            cause = f" ({fault.__cause__})" if fault.__cause__ else ""
            return Reply("", error=f"{server}: {type(fault).__name__}: {fault}{cause}")
        except ValueError as fault:  # of the answer, or of a message that UTF-8 cannot hold
            return Reply("", error=f"{server}: {fault}")


def _reply_of(body: bytes) -> Reply:
    """Return a chat completion's reply; a ValueError for anything else."""
    _, choice = first_choice(body)
    message = choice["message"]
    parts = [message["content"]] if message.get("content") else []
    calls = message.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [calls]:
        match call:
            case {"function": {"name": str(name), **rest}} if isinstance(
                arguments := rest.get("arguments"), str | dict | None
            ):
                parts.append(write_call(name, arguments or "{}"))
            case _:
                form = "{'function': {'name': TEXT, 'arguments': TEXT}}"
                raise ValueError(f"a tool call has the form {form}, not {reprlib.repr(call)}")
    stop: Literal["stop", "length"] = "length" if choice.get("finish_reason") == "length" else "stop"
    return Reply(printable("\n".join(parts)), stop)
