from collections.abc import Iterator

import pytest

from art_gym.wrappers.judging import http_client
from tests.wrappers.judging.judge_server import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Servers and judges of one test."""
    made = Bench()
    monkeypatch.setattr(http_client, "sleep", made.pauses.append)
    yield made
    made.close()
