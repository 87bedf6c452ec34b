"""What the tests of the environments share."""

import pytest

from art_gym.envs.coding import sharing
from art_gym.envs.coding.sandbox import Sandbox, SandboxUnavailableError


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """This process's sandbox, if this machine can isolate programs."""
    try:
        return sharing.shared_sandbox()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
