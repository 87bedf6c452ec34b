from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def clean_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of services in the environment, and their folders below this test's own."""
    for name in os.environ:
        if name.startswith(("WANDB_", "OTEL_")):
            monkeypatch.delenv(name)
    for name, folder in {"HOME": "home", "WANDB_DATA_DIR": "data", "WANDB_CACHE_DIR": "cache"}.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
