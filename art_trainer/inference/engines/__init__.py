"""Clients of the vLLM and SGLang inference servers."""
