"""The protocol's page says what the models say, and is enough to write a worker from."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import get_args

import generate_protocol
import pytest
from fastapi.routing import APIRoute

from art_trainer.config import GRPOConfig
from art_trainer.distributed import worker_connections as connections
from art_trainer.distributed.backend import RemoteBackend
from art_trainer.distributed.protocol import Outcome
from art_trainer.distributed.server import ServerOptions
from art_trainer.distributed.worker_connections import NORMAL, REFUSED
from art_trainer.serving.dialects import ServedPolicy
from art_trainer.serving.dialects.router import dialect_router
from art_trainer.serving.http import middleware as guard
from art_trainer.types import GroupSpec
from tests.art_trainer.distributed.server_helpers import TOKEN, served
from tests.art_trainer.guess import guess_policy

ROOT = Path(__file__).parents[3]
WORKER = ROOT / "docs" / "protocol" / "minimal_worker.py"
STALE = "run python docs/generate_protocol.py"


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_models_say(page: str) -> None:
    assert generate_protocol.page(page) == page, STALE
    with pytest.raises(ValueError, match="no place for the part client"):
        generate_protocol.page("# The protocol")


def test_every_field_has_its_meaning_and_every_part_its_place(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) ?\|$", page, re.MULTILINE)
    assert len(rows) > 100
    assert [name for name, _, meaning in rows if not meaning and name != "type"] == []
    headings = {name.lower() for name in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= headings


def test_the_page_has_every_route_code_and_outcome(page: str, tmp_path: Path) -> None:
    with served(tmp_path) as here:
        routes = [route for route in here.server._router().routes if isinstance(route, APIRoute)]
    shown = {f"`{method} {route.path}`" for route in routes for method in route.methods}
    assert len(shown) == 6
    assert [one for one in shown if one not in page] == []
    sources = "".join(Path(str(module.__file__)).read_text() for module in (connections, guard))
    codes = set(re.findall(r'(?:code=|refuse\(|RejectedError\()\s*"(\w+)"', sources))
    codes |= set(re.findall(r'ApiError\(.*, "(\w+)"\)', sources)) - {"too_slow"}
    assert len(codes) > 10
    assert [code for code in codes if f"`{code}`" not in page] == []
    assert re.findall(r"^\| `(\w+)` \|[^|]+\|$", page, re.MULTILINE) == list(get_args(Outcome))
    closed = {int(code) for code in re.findall(r"^\| (1\d{3}) \| server", page, re.MULTILINE)}
    assert closed == {NORMAL, REFUSED, connections.TRY_AGAIN, 1009, 1011, 1012}


def test_a_worker_that_knows_the_page_alone_plays_for_a_real_server(tmp_path: Path) -> None:
    tree = ast.parse(WORKER.read_text(encoding="utf-8"))
    names = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(names) == {
        *("base64", "hashlib", "json", "os", "struct", "sys", "time"),
        *("urllib.request", "websockets.sync.client"),
    }
    tasks = [GroupSpec(3, 4, (0, 0)), GroupSpec(4, 2, (0, 1))]
    policy, config = guess_policy(hidden=16), GRPOConfig(output_dir=str(tmp_path), max_completion_length=2)
    with ServedPolicy(policy) as api:
        options = ServerOptions(token=TOKEN, routers=[dialect_router(api)])
        backend = RemoteBackend(policy, "made/Guess-v0", {}, config, tmp_path, options=options)
        command = [sys.executable, "-I", "-W", "error", str(WORKER), backend.url]
        environment = {**os.environ, "ART_SERVER_TOKEN": TOKEN}
        with closing(backend), subprocess.Popen(command, env=environment, text=True, stdout=-1) as worker:
            backend.publish(0)
            groups = backend.collect(tasks, on_episode=lambda episode: None)
            backend.drain_workers("that was all")
            printed, _ = worker.communicate(timeout=1000)
            assert backend.status().results == {"leased": 6, "accepted": 6}
        assert worker.returncode == 0
    assert printed.count("accepted") == 6
    assert re.findall(r"(\d+) bytes of version 0", printed)
    histories = [history for group in groups for episode in group.episodes for history in episode.histories]
    own = policy.format.prompt([{"role": "user", "content": "GUESS"}])
    assert [list(history.spans[0].token_ids) for history in histories] == [own] * 6
