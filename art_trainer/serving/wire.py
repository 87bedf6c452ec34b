"""Pieces of OpenAI's wire format that every answer is made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastapi import Request
from pydantic_core import from_json

from art_trainer.serving.live_sampler import TokenRun
from art_trainer.web.errors import ApiError

STREAM_END = "data: [DONE]\n\n"
_UNFINISHED = "\ufffd"


def server_sent(data: Mapping[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def read_json(request: Request) -> dict[str, Any]:
    """A request's body, a JSON object.

    Raises:
        ApiError: Where the body is something else, or not declared as JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(f"content-type is {kind!r}: send application/json", status=415)
    body = await request.body()
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as wrong:
        raise ApiError(f"the body is not JSON: {wrong}") from None
    if not isinstance(data, dict):
        raise ApiError(f"the body is a {type(data).__name__}: send an object")
    return data


async def hung_up(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def models(
    name: str, version: int, context_limit: int | None = None, *, past: Iterable[int] = ()
) -> dict[str, Any]:
    """The list of models: the policy, by its bare name and by its names with a version.

    Args:
        name: The policy's name.
        version: Of its weights.
        context_limit: Most tokens of prompt and reply, vLLM's ``max_model_len``.
        past: Other versions that are served.
    """
    common = {"object": "model", "created": 0, "owned_by": "art-trainer", "root": name}
    common["max_model_len"] = context_limit
    newest = {"id": name, "parent": None, **common}
    pinned = [{"id": f"{name}@{one}", "parent": name, **common} for one in (version, *past)]
    return {"object": "list", "data": [newest, *pinned]}


def usage(prompt: int, sampled: int) -> dict[str, int]:
    """How many tokens were read and sampled."""
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


class TokenTexts:
    """What single tokens say, on the wire.

    Args:
        decode: Tokens to text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._known: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        text = self._known.get(token)
        if text is None:
            text = self._known[token] = self._decode([token])
        return text

    def chat_logprobs(self, run: TokenRun) -> dict[str, Any]:
        """Log-probs as a chat completion has them."""
        content = [self._entry(*pair) for pair in zip(run.token_ids, run.logprobs, strict=True)]
        for place, entry in enumerate(content):
            noted = run.alternatives[place] if run.alternatives else ()
            entry["top_logprobs"] = [self._entry(*pair) for pair in noted]
        return {"content": content, "refusal": None}

    def completion_logprobs(self, run: TokenRun, offset: int = 0) -> dict[str, Any]:
        """Log-probs as a text completion has them.

        Args:
            run: The tokens.
            offset: How many characters the tokens before them have.
        """
        tokens = [self[token] for token in run.token_ids]
        offsets = []
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        top = []
        for place, (token, logprob) in enumerate(zip(tokens, run.logprobs, strict=True)):
            noted = run.alternatives[place] if run.alternatives else ()
            # Of tokens that say the same the most likely one stays.
            known = {self[other]: value for other, value in reversed(noted)}
            top.append({token: logprob, **known})
        return {
            "tokens": tokens,
            "token_logprobs": list(run.logprobs),
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self[token]
        # Where a token is a part of a character, its bytes are not known.
        whole = None if _UNFINISHED in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": whole}
