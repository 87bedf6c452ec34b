"""What Hugging Face models call their cache, as an argument and in their output."""

from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE_NAME = "cache" if hasattr(BaseModelOutputWithPast(), "cache") else "past_key_values"
"""Transformers renamed it in 5.24."""
