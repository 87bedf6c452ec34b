"""Sampling replies: policies, the batched decoder with its KV cache, and clients of inference servers."""
