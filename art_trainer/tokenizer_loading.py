"""A tokenizer as its files say it is."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config

_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    ``AutoTokenizer`` goes by the model's architecture: beside a Qwen2 model it splits texts as Qwen2 does,
    with the file's vocabulary, even where the file says that it is a tokenizer of its own. A policy that was
    saved with such a one would come back with other tokens, and no error. Here the file's word counts.

    Args:
        name_or_path: A Hugging Face name or a folder.

    Raises:
        OSError: Where there is none.
        ValueError: Where its files are not a tokenizer's.
    """
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name_or_path)
    declared = get_tokenizer_config(name_or_path).get("tokenizer_class")
    if declared in _GENERIC and type(found).__name__ not in _GENERIC:
        found = PreTrainedTokenizerFast.from_pretrained(name_or_path)
    return found
