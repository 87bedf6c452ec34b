from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx2
import huggingface_hub.file_download  # noqa: F401, before the client that it annotates with is replaced
import pytest

from tests.art_trainer.tracking.sinks.services import KINDS, HttpService, Service

CLIENT = httpx2.Client


@pytest.fixture
def clean_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of services in the environment, and their folders below this test's own."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ENDPOINT", "HEADERS", "TIMEOUT", "CERTIFICATE"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_TRACES_{name}", raising=False)
    for name, value in {
        "HOME": str(tmp_path),
        "WANDB_DATA_DIR": str(tmp_path / "data"),
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def make_service(
    clean_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Service]:
    """Make a service by its sink's name."""

    def make(name: str) -> Service:
        service = KINDS[name](name, tmp_path)
        if isinstance(service, HttpService):
            transport = httpx2.MockTransport(service)
            monkeypatch.setattr(httpx2, "Client", partial(CLIENT, transport=transport))
        return service

    return make
