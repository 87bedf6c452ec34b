"""Serving environments to other libraries and agents: MCP, OpenEnv, verifiers, TorchRL."""
