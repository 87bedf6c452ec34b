"""Who may use a training server: every route and socket, with the wrong token, name, page, size or pace."""

import asyncio
import contextlib
import http.client
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.routing import BaseRoute
from websockets.exceptions import ConnectionClosed, InvalidStatus

from art_trainer.distributed.protocol import Limits
from art_trainer.errors import ConfigError
from art_trainer.serving.dashboard import RunsSource, dashboard_router, page
from art_trainer.serving.dialects import ServedPolicy
from art_trainer.serving.dialects.router import dialect_router
from art_trainer.serving.http.middleware import HostNames, RateLimit, check_access
from tests.art_trainer.distributed.server_helpers import TOKEN, Served, served
from tests.art_trainer.serving.helpers import tiny_policy
from tests.art_trainer.waiting import until

WRONG = [None, TOKEN[:-1], TOKEN + "x", TOKEN.upper()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with all its parts, as ``art-trainer serve`` makes it."""
    folder = tmp_path_factory.mktemp("server")
    with ServedPolicy(tiny_policy()) as policy:
        routers = [dialect_router(policy), dashboard_router(RunsSource([folder]))]
        with served(folder, routers=routers, login_page=page) as here:
            yield here


def every_route(app: FastAPI) -> list[tuple[str, str]]:
    """Method and path of each, with something in place of its parameters."""
    found: list[tuple[str, str]] = []

    def walk(routes: list[BaseRoute]) -> None:
        for route in routes:
            nested = getattr(route, "original_router", None) or getattr(route, "app", None)
            if isinstance(route, APIRoute):
                path = re.sub(r"\{[^}]*\}", "0", route.path)
                found.extend((method, path) for method in sorted(route.methods))
            elif isinstance(route, APIWebSocketRoute):
                found.append(("WS", re.sub(r"\{[^}]*\}", "w1", route.path)))
            elif nested is not None and hasattr(nested, "routes"):
                walk(nested.routes)
            else:
                raise AssertionError(f"a route that nobody asks about: {route!r}")

    walk(app.routes)
    return found


def refused(dial: Callable[[], Any]) -> httpx.Response:
    """What a handshake was answered with."""
    with pytest.raises(InvalidStatus) as caught, dial():
        pass
    answer = caught.value.response
    return httpx.Response(answer.status_code, headers=dict(answer.headers), content=bytes(answer.body or b""))


def test_no_route_answers_without_the_token(whole: Served) -> None:
    routes = every_route(whole.server.app)
    paths = {path for _, path in routes}
    assert {"/status", "/model", "/model/0", "/weights/0", "/weights/0/data", "/shutdown", "/ws/w1"} <= paths
    assert {"/", "/v1/models", "/v1/chat/completions", "/v1/completions", "/api/runs"} <= paths
    routes.remove(("GET", "/health"))
    for token in WRONG:
        with whole.http(token) as client:
            assert client.get("/health").json() == {"status": "ok"}
            for method, path in routes:
                if method == "WS":
                    answer = refused(partial(whole.dial, path, token, path=""))
                else:
                    answer = client.request(method, path, json={})
                assert answer.status_code == 401, (method, path, token)
                assert answer.headers["www-authenticate"] == "Bearer"
                if path != "/":
                    error = answer.json()["error"]
                    assert error.get("code", error.get("details", {}).get("error_code")) == "invalid_api_key"


def test_the_token_opens_the_routes_and_there_are_no_documentation_pages(whole: Served) -> None:
    with whole.http() as client:
        for path in ("/status", "/model", "/weights/0", "/v1/models", "/"):
            assert client.get(path).status_code == 200, path
        for path in ("/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect"):
            assert client.get(path).status_code == 404, path
    with whole.worker() as worker:
        assert worker.welcome["type"] == "welcome"


OWN, HOST = "{url}", "{host}"
"""Stand for the server's address, and its part after ``http://``."""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"BEARER {TOKEN}"}, 200),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": f"Bearer {TOKEN}, Bearer {TOKEN}"}, 401),
        ({"authorization": "", "x-api-key": TOKEN}, 200),
        ({"authorization": "", "x-api-key": f"{TOKEN}x", "cookie": f"token={TOKEN}"}, 401),
        ({"origin": OWN}, 200),
        *(({"origin": origin}, 403) for origin in ("http://evil.example", "null", "", "file://")),
        *(({"origin": origin}, 403) for origin in (f"{OWN}.evil.example", f"x://{HOST}")),
        *(({"host": host}, 400) for host in ("evil.example", "127.0.0.1.evil.example:80", "", "a@localhost")),
    ],
)
def test_requests_and_sockets_need_right_headers(whole: Served, headers: dict[str, str], status: int) -> None:
    url = whole.server.url
    sent = {name: value.format(url=url, host=url.removeprefix("http://")) for name, value in headers.items()}
    sent = {"authorization": f"Bearer {TOKEN}"} | sent
    with httpx.Client(base_url=url, headers=sent, trust_env=False) as client:
        for path in ("/status", f"/status?token={TOKEN}"):
            assert client.get(path).status_code == status
    if "host" in sent:  # a client writes its own Host beside ours, and two are a foreign one too
        sent["host"] = sent["host"] or "x"
    if status == 200:
        with whole.dial(token=None, headers=sent):
            pass
    else:
        assert refused(lambda: whole.dial(f"w1?token={TOKEN}", None, headers=sent)).status_code == status


def test_the_root_shows_the_login_page_without_a_token(whole: Served) -> None:
    with whole.http(None) as client:
        answer = client.get("/")
        assert (answer.status_code, answer.content) == (401, page().body)
        assert answer.headers["content-security-policy"] == page().headers["content-security-policy"]
        assert client.post("/").headers["content-type"] == "application/json"


def test_accepted_host_names() -> None:
    names = HostNames("0.0.0.0", ["Train.example"])
    for name in ("10.1.2.3:80", "[fe80::1]:80", "localhost", "train.example:443"):
        assert names.include(name), name
    assert not names.include("evil.example")
    assert not HostNames("10.1.2.3").include("127.0.0.1")
    assert HostNames("::1").include("[::1]:80")


UNUSABLE = ["short", "sixteen-letters-ü", "with a space in it", "line\nbreak-in-the-middle"]


@pytest.mark.parametrize(
    ("host", "token", "names", "words"),
    [
        *((host, None, (), "no token") for host in ("0.0.0.0", "::", "10.0.0.1", "example.org")),
        ("127.0.0.1", None, ["a.example"], "a.example"),
        *(("127.0.0.1", token, (), f"token has {len(token)}") for token in UNUSABLE),
        ("127.0.0.1", None, ["localhost", "127.0.0.2"], None),
        ("0.0.0.0", TOKEN, ["a.example"], None),
    ],
)
def test_a_server_that_others_reach_needs_a_proper_token(
    tmp_path: Path, host: str, token: str | None, names: list[str], words: str | None
) -> None:
    if words is None:
        check_access(host, token, names)
        return
    with (
        pytest.raises(ConfigError, match=words) as caught,
        served(tmp_path, token=token, host=host, allowed_hosts=names),
    ):
        pass
    assert token is None or token not in str(caught.value)


def test_without_a_token_local_clients_are_allowed_but_no_web_pages(tmp_path: Path) -> None:
    with served(tmp_path, token=None) as here, here.http(None) as client:
        assert client.get("/status").status_code == 200
        assert client.get("/status", headers={"origin": "http://evil.example"}).status_code == 403


def test_only_the_models_own_files_are_fetched(whole: Served) -> None:
    (whole.folder / "weights" / "model" / "secret.txt").write_text("not to be fetched")
    with whole.http() as client:
        assert "qwen2" in client.get("/model/config.json").text
        for name in ("..%2fmodel%2fsecret.txt", "secret.txt", "%2e%2e", "..%5csecret.txt", "config.json%00"):
            assert client.get(f"/model/{name}", follow_redirects=False).status_code in (307, 404), name


def test_files_come_whole_and_in_ranges(whole: Served) -> None:
    with whole.http() as client:
        size = client.get("/weights/0").json()["file"]["size"]
        assert len(client.get("/weights/0/data").content) == size
        part = client.get("/weights/0/data", headers={"range": f"bytes={size - 10}-"})
        assert (part.status_code, len(part.content)) == (206, 10)
        paths = {"/1": 404, "/1/data": 404, "/x": 422, "/-1": 422, "/99999999999999999999": 422}
        assert {path: client.get(f"/weights{path}").status_code for path in paths} == paths
        assert client.get("/status").headers["x-content-type-options"] == "nosniff"


def test_the_size_of_bodies_is_limited(tmp_path: Path) -> None:
    router = APIRouter()

    @router.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    with served(tmp_path, routers=[router], limits=Limits(body_bytes=1000)) as here, here.http() as client:
        assert client.post("/echo", json={"a": "x" * 100}).status_code == 200
        assert client.post("/echo", content=b"x" * 2000).status_code == 413
        parts = (b" " * 100 for _ in range(200))
        assert client.post("/echo", content=parts).status_code == 413
        parts = (b" " * 100 for _ in range(10))
        assert client.post("/echo", content=parts).json() == 1000
        assert client.get("/status").status_code == 200


def test_requests_above_the_rate_limit_get_429(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_trainer.distributed.server.RateLimit", partial(RateLimit, clock=lambda: 0.0))
    with served(tmp_path, limits=Limits(requests_per_second=1, burst=5)) as here:
        with here.http("wrong-token-of-some-length") as client:
            codes = [client.get("/status").status_code for _ in range(8)]
            assert codes == [401] * 5 + [429] * 3
            assert client.get("/status").headers["retry-after"] == "1"
        assert refused(here.dial).status_code == 429


def test_the_rate_limit_refills_and_is_per_client() -> None:
    now = [0.0]
    limit = RateLimit(2, 3, clock=lambda: now[0])
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.take("b") == 0
    now[0] = 0.6
    assert [limit.take("a"), limit.take("a") > 0] == [0, True]
    now[0] = 100
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    for client in range(20_000):
        limit.take(client)
    assert len(limit._buckets) == 10_000


def test_the_number_of_sockets_is_limited(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(sockets=2)) as here:
        with here.dial("w1"), here.dial("w2"):
            assert refused(lambda: here.dial("w3")).json()["error"]["code"] == "too_many_connections"

        def one_may_come_again() -> bool:
            with contextlib.suppress(InvalidStatus), here.dial("w3"):
                return True
            return False

        until(one_may_come_again)


def test_slow_request_headers_are_cut_off(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(head_seconds=0.2)) as here:
        address = ("127.0.0.1", int(here.server.url.rpartition(":")[2]))
        with socket.create_connection(address, 30) as silent, socket.create_connection(address, 30) as slow:
            slow.sendall(b"GET /status HTTP/1.1\r\nHost: loc")
            assert silent.recv(100) == b""
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(100) == b""


def test_a_connection_that_is_used_is_not_cut_off(tmp_path: Path) -> None:
    router = APIRouter()

    @router.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(2.5)
        return "done"

    limits = Limits(head_seconds=2)
    with served(tmp_path, routers=[router], limits=limits) as here:
        line = http.client.HTTPConnection(here.server.url.removeprefix("http://"), timeout=300)
        with contextlib.closing(line):
            line.connect()
            line.auto_open = 0  # one that is cut off is not opened again
            for path in ("/slow", "/status"):
                line.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
                assert line.getresponse().read()


def test_a_socket_without_hello_is_closed(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(hello_seconds=0.2)) as here, here.dial("idle") as idle:
        assert json.loads(idle.recv(30))["code"] == "no_hello"
        with pytest.raises(ConnectionClosed):
            idle.recv(30)


def test_the_token_is_in_no_log_and_no_address(
    whole: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        for token in (TOKEN, "wrong-token-of-some-length"):
            with whole.http(token) as client:
                client.post("/v1/chat/completions", content=b"{}")
        with whole.worker("logged") as worker:
            assert worker.ask(type="nonsense")["type"] == "error"
    ours = [record for record in caplog.records if not record.name.startswith(("websockets", "httpcore"))]
    said = [record.getMessage() for record in ours] + [json.dumps(worker.welcome), *capfd.readouterr()]
    said += [whole.server.url, whole.server.status().model_dump_json()]
    assert not [text for text in said if TOKEN in text]
