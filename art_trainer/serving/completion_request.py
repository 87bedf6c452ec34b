"""A request for text completions, read and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art_trainer.serving.terms import Terms, refuse_all_but, typed
from art_trainer.web.errors import ApiError

DEFAULT_TOKENS = 16
"""How long a completion may be where the client does not say: OpenAI's number."""
_MOST_PROMPTS = 256
_MOST_REPLIES = 512
_MOST_STOPS = 64
_MOST_STOP_TOKENS = 4096
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_embeds": (),
}

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for text completions."""

    prompts: tuple[Prompt, ...]
    """Texts, or token ids that are read as they are."""
    special_tokens: bool
    """Whether a text gets the special tokens that the tokenizer puts around one."""
    stop_tokens: tuple[int, ...]
    """Tokens that end a completion, besides the policy's."""
    keep_stops: bool
    """Whether a stop string is part of the text that it ends."""
    terms: Terms

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> CompletionRequest:
        """Check a request's body.

        Raises:
            ApiError: Where a field is of a wrong type, or asks for what is not offered.
        """
        refuse_all_but(body, _NEUTRAL)
        terms = Terms.read(body, typed(body, "logprobs", int), _MOST_STOPS)
        prompts = _prompts(body.get("prompt"))
        if len(prompts) * terms.count > _MOST_REPLIES:
            words = f"{len(prompts)} prompts, {terms.count} times each: at most {_MOST_REPLIES} completions"
            raise ApiError(f"{words} are offered at a time", param="n")
        return cls(
            prompts=prompts,
            special_tokens=typed(body, "add_special_tokens", bool) is not False,
            stop_tokens=_stop_tokens(typed(body, "stop_token_ids", list) or []),
            keep_stops=bool(typed(body, "include_stop_str_in_output", bool)),
            terms=dataclasses.replace(terms, max_tokens=terms.max_tokens or DEFAULT_TOKENS),
        )


def _prompts(value: object) -> tuple[Prompt, ...]:
    """One prompt or a list of them, each a text or a list of token ids."""
    several = isinstance(value, list) and value and not _are_ids(value)
    many: list[object] = list(value) if isinstance(value, list) and several else [value]
    if len(many) > _MOST_PROMPTS:
        raise ApiError(f"{len(many)} prompts are sent: at most {_MOST_PROMPTS} are taken", param="prompt")
    return tuple(_prompt(one) for one in many)


def _prompt(value: object) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and _are_ids(value):
        return tuple(value)
    shown = repr(value)[:80]
    words = "send a text, a list of token ids, or a list of either"
    raise ApiError(f"prompt has {shown} where a prompt should be: {words}; none may be empty", param="prompt")


def _are_ids(value: list[Any]) -> bool:
    return all(type(token) is int for token in value)


def _stop_tokens(value: list[Any]) -> tuple[int, ...]:
    if not _are_ids(value) or len(value) > _MOST_STOP_TOKENS:
        words = f"send up to {_MOST_STOP_TOKENS} token ids"
        raise ApiError(f"stop_token_ids has {len(value)} entries, or others: {words}", param="stop_token_ids")
    return tuple(value)
