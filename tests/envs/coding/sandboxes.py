"""Sandboxes for tests."""

from typing import Any

import pytest

from art_gym.envs.coding.sandbox import Sandbox, SandboxUnavailableError


def opened(**arguments: Any) -> Sandbox:
    """A new sandbox; if this machine cannot isolate programs so, the test is skipped."""
    try:
        return Sandbox(**arguments)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
