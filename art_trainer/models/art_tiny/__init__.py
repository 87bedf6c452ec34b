"""``art-tiny``: the embedded language model, small enough to be trained on a laptop in minutes.

It is a Llama of two layers with a word-level tokenizer, pre-trained by ``benchmarks/pretrain_art_tiny.py`` on
worlds that no evaluation uses. It has learned to call the mail environment's tools from a deliberately noisy
demonstrator, and nothing else: a run shows what GRPO adds.
"""

from __future__ import annotations

from pathlib import Path

NAME = "art-tiny"


def path() -> Path:
    """Return the folder with its weights, config and tokenizer, for ``from_pretrained``."""
    return Path(__file__).parent / "weights"
