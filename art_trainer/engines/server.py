"""What engines that are servers have in common: the connection, and one adapter after the other."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

from art_trainer.engines.engine import ServedModel
from art_trainer.engines.models import served_model
from art_trainer.engines.transport import Transport
from art_trainer.engines.weights import SavedWeights
from art_trainer.errors import EngineError, EngineRequestError


class ServerEngine:
    """A server with adapters that are loaded by name; each kind of server fills in the rest.

    Args:
        url: The server's address, such as ``http://localhost:8000``.
        model: The model's name on the server; ``None`` for the one it was started with.
        **transport: For :class:`~art_trainer.engines.transport.Transport`: ``api_key``, ``max_concurrency``,
            ``timeout``, ``max_retries``, ``backoff``.
    """

    kind: ClassVar[str]
    """What people call such a server."""
    adapter_paths: ClassVar[tuple[str, str]]
    """Where adapters are loaded and unloaded."""
    already_loaded: ClassVar[str]
    """Words in the refusal of an adapter whose name is taken."""
    needs_lora: ClassVar[str]
    """How the server has to be started to take adapters."""

    def __init__(self, url: str, model: str | None = None, **transport: Any) -> None:
        self._transport = Transport(url, **transport)
        self._model = model
        self._adapter: str | None = None
        self.name = f"{self.kind.lower()}:{model or ''}@{self._transport.url}"

    async def served(self) -> ServedModel:
        """The model that requests name, or the server was started with."""
        return await served_model(self._transport, self._model)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _load_adapter(self, weights: SavedWeights) -> None:
        """Load an adapter under its own name, and let go of the one before.

        Raises:
            EngineError: Where the server does not take it.
        """
        load, unload = self.adapter_paths
        try:
            await self._transport.tell(load, {"lora_name": weights.name, "lora_path": str(weights.folder)})
        except EngineRequestError as fault:
            # Of that name it has the same content: an attempt before this one, or run, has loaded it.
            if self.already_loaded not in str(fault):
                raise EngineError(
                    f"{self.kind} did not take the adapter {weights.folder}: {fault}; {self.needs_lora}"
                ) from fault
        before, self._adapter = self._adapter, weights.name
        if before is not None and before != weights.name:
            # One that is gone already, as after a restart, is none the less gone.
            with contextlib.suppress(EngineRequestError):
                await self._transport.tell(unload, {"lora_name": before})
