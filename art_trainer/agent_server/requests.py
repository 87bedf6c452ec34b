"""What an agent may ask for: OpenAI's chat API, but for what would make an episode something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art_trainer.serving.chat_request import ChatRequest
from art_trainer.serving.terms import refuse_all_but

_NEUTRAL: Mapping[str, tuple[object, ...]] = {"n": (1,), "top_logprobs": (0,)}


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """Check an agent's request.

    ``temperature``, ``top_p`` and the other ways to sample are the training run's, whatever the client asks
    for: what is learned from must be sampled from the policy as it is.

    Raises:
        ApiError: Where a field is of a wrong type, or asks for what is not offered.
    """
    refuse_all_but(body, _NEUTRAL)
    return ChatRequest.read(body)
