"""Fixtures of the tests that ask engines."""

import contextlib

import pytest

from tests.art_trainer.engine_server import EngineServer
from tests.art_trainer.tiny_models import tiny_model


@pytest.fixture
def serve():
    """Start a server of the tiny model for one test, with the options of :class:`EngineServer`."""
    with contextlib.ExitStack() as servers:
        yield lambda **options: servers.enter_context(
            contextlib.closing(EngineServer(tiny_model(), **options))
        )
