"""Any server that speaks OpenAI's chat protocol, as a policy: vLLM, SGLang, llama.cpp, OpenAI itself.

Requests run in threads, so that many conversations are under way at one time. A native tool call in an answer
is written into the reply as text, in the form the environments' parser reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai

from art_trainer.episodes import TokenHistory
from art_trainer.interrupt import first_completed
from art_trainer.policy import Conversation, Reply, in_window

_SEED_LIMIT = 2**31


class OpenAIPolicy:
    """Asks a server for replies; implements :class:`art_trainer.policy.Policy`, without tokens.

    A request that fails for good ends its own episode as a policy error, in words.

    Args:
        model: The model's name on the server.
        base_url: Such as ``http://localhost:8000/v1``; by default OpenAI's, or ``OPENAI_BASE_URL``.
        api_key: By default ``OPENAI_API_KEY``; most local servers take any.
        max_concurrency: Most requests under way at one time.
        temperature: Of sampling; ``None`` leaves it to the server.
        top_p: Of sampling; ``None`` leaves it to the server.
        max_new_tokens: Most tokens a reply.
        timeout: Most seconds for one attempt.
        max_retries: Attempts after the first, with growing pauses, where the server is busy or broken.
        send_tools: Whether the tools' schemas go along; the standing instructions name them in words too.
        send_seed: Whether each request carries a seed drawn from the conversation's randomness.
        extra_body: More fields of the request, as some servers have them.
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
        if history_window is not None and history_window < 1:
            raise ValueError(f"history_window is at least 1, got {history_window}")
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency is at least 1, got {max_concurrency}")
        if api_key is None and base_url is not None:
            api_key = "none"  # the client insists on one, a local server does not
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
        self._asked: dict[Future[Reply], Conversation] = {}

    def submit(self, conversation: Conversation) -> None:
        """Send a request for the next reply."""
        messages = list(in_window(conversation.messages, self._history_window))
        request = {"model": self.model, "messages": messages, **self._options}
        if self._send_tools and conversation.tools:
            request["tools"] = [dict(tool) for tool in conversation.tools]
        if self._send_seed:
            request["seed"] = int(conversation.rng.integers(_SEED_LIMIT))
        self._asked[self._pool.submit(self._ask, request)] = conversation

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Wait for at least one answer, and return those that have come."""
        if not self._asked:
            return []
        finished = first_completed(self._asked)
        answers = []
        for future in [asked for asked in self._asked if asked in finished]:
            conversation, reply = self._asked.pop(future), future.result()
            if reply.error is None:
                conversation.messages.append({"role": "assistant", "content": reply.text})
            answers.append((conversation, reply))
        return answers

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Drop the conversation's request, if it is under way; there are no tokens."""
        for future in [asked for asked, owner in self._asked.items() if owner is conversation]:
            future.cancel()
            del self._asked[future]
        return ()

    def close(self) -> None:
        """Give up the threads and connections; requests under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def __enter__(self) -> OpenAIPolicy:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any]) -> Reply:
        try:
            answer = self._client.chat.completions.create(**request)
        except openai.APITimeoutError:
            return Reply("", error=f"no answer within {self._client.timeout} s from {self._client.base_url}")
        except openai.APIStatusError as fault:
            return Reply("", error=f"the server answered {fault.status_code}: {fault.message}")
        except openai.OpenAIError as fault:
            cause = f" ({fault.__cause__})" if fault.__cause__ else ""
            return Reply("", error=f"{type(fault).__name__}: {fault}{cause}")
        except json.JSONDecodeError as fault:
            return Reply("", error=f"the server's answer is not JSON: {fault}")
        return _reply_of(answer)


def _reply_of(answer: Any) -> Reply:
    """Read a chat completion; servers differ, so nothing about it is taken for granted."""
    choices = getattr(answer, "choices", None)
    message = getattr(choices[0], "message", None) if choices else None
    if not choices or message is None:
        shown = str(answer)[:200]
        return Reply("", error=f"the server's answer has no choices[0].message; it begins {shown!r}")
    parts = [message.content] if isinstance(message.content, str) and message.content else []
    for call in message.tool_calls or ():
        function = getattr(call, "function", None)
        if function is not None:
            parts.append(_hermes_call(function.name, function.arguments))
    usage = getattr(answer, "usage", None)
    count = getattr(usage, "completion_tokens", None) or 0
    return Reply("\n".join(parts), "length" if choices[0].finish_reason == "length" else "stop", int(count))


def _hermes_call(name: str, arguments: str | None) -> str:
    """A tool call as Hermes and Qwen write it; broken arguments stay broken, for the parser to point out."""
    try:
        written = json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError, too
        written = str(arguments)
    return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {written}}}</tool_call>'
