"""``art-tiny``: the embedded language model, small enough to learn on a laptop while one watches.

It is a Llama of two layers with a word-level tokenizer, pre-trained by
:mod:`art_trainer.art_tiny.pretrain` on worlds that no evaluation uses. It knows the mail environment's tools
from a deliberately noisy demonstrator, and that is all: what GRPO makes of it is what a run shows.
"""

from __future__ import annotations

from pathlib import Path

NAME = "art-tiny"


def path() -> Path:
    """The folder with its weights, config and tokenizer, as ``from_pretrained`` takes it."""
    return Path(__file__).parent / "weights"
