"""Rotary embeddings whose frequencies depend on the longest row of a batch.

With ``longrope`` (Phi-3, Phi-4-mini) and ``dynamic`` scaling, Transformers rotates all rows of a batch by
other frequencies as soon as one of them is longer than some length. Keys that were cached before keep the old
ones. Beyond that length a token's log-prob depends on what its context is batched with, and the learner
cannot find the one that was sampled from. So contexts end there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art_trainer.errors import UnsupportedModelError


def frequency_limit(model: Any) -> int | None:
    """Return after how many tokens a model's rotary frequencies change; ``None`` if they never do."""
    config = getattr(model, "config", None)
    if config is None:
        return None
    config = config.get_text_config(decoder=True)
    parameters: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    # One set for all layers, or one for each type of layer.
    every = [parameters, *(part for part in parameters.values() if isinstance(part, Mapping))]
    found = []
    for part in every:
        if part.get("rope_type") == "longrope":
            found.append(int(part["original_max_position_embeddings"]))
        elif part.get("rope_type") == "dynamic":
            found.append(int(config.max_position_embeddings))
    return min(found, default=None)


def check_context(model: Any, tokens: int | None) -> None:
    """Raise an UnsupportedModelError if contexts of so many tokens (``None``: any) exceed the limit."""
    limit = frequency_limit(model)
    if limit is not None and (tokens is None or tokens > limit):
        raise UnsupportedModelError(
            f"a context may have {'any number of' if tokens is None else tokens} tokens, but beyond {limit} "
            f"{type(model).__name__} rotates all rows of a batch by other frequencies (rope_parameters in "
            f"its config), so that log-probs depend on the batch: set max_context to {limit}"
        )
