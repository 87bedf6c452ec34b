"""Client of the vLLM inference server."""
