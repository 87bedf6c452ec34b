"""``art-trainer doctor``: what is here, and what to do about what is not."""

import platform
from collections.abc import Callable

import pytest
from click.testing import Result

from art_trainer.cli import doctor
from art_trainer.models import cpu


def test_what_is_here_and_what_to_install(
    invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "pettingzoo")
    found = invoke("doctor")
    assert found.exit_code == 0
    rows = {row.split("│")[1].strip(): row for row in found.output.splitlines() if row.startswith("│")}
    assert platform.python_version() in rows["Python"]
    assert "float32 is used" in rows["bfloat16 on the CPU"]
    assert "pip install pettingzoo" in rows["extra: pettingzoo"]
    assert "installed" in rows["extra: train"]
    assert "extra: test" not in rows
