"""Who may use a training server: every route and socket, with the wrong token, name, page, size or pace."""

import contextlib
import http.client
import json
import logging
import pickle
import re
import socket
import time
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

from art_trainer.dashboard import PAGE_HEADERS, RunsSource, dashboard_router, page
from art_trainer.errors import ConfigError
from art_trainer.remote.limits import Limits
from art_trainer.serving import ServedPolicy, openai_router
from art_trainer.web.access import check_access
from art_trainer.web.hosts import HostNames
from art_trainer.web.rates import RateLimit
from tests.art_trainer.agent_server.agent_helpers import tiny_policy
from tests.art_trainer.remote.server_helpers import TOKEN, Served, served, until

WRONG = [None, "x", "wrong-token-of-some-length", TOKEN[:-1], TOKEN + "x", TOKEN.upper()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with all its parts, as ``art-trainer serve`` makes it."""
    folder = tmp_path_factory.mktemp("server")
    with ServedPolicy(tiny_policy()) as policy:
        routers = [openai_router(policy), dashboard_router(RunsSource([folder]))]
        with served(folder, routers=routers, login_page=page(), login_headers=PAGE_HEADERS) as here:
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
    assert {"/", "/v1/models", "/v1/chat/completions", "/v1/completions"} <= paths
    assert len(paths) > 15
    for token in WRONG:
        headers = {} if token is None else {"authorization": f"Bearer {token}".encode()}
        with httpx.Client(base_url=whole.server.url, headers=headers, trust_env=False) as client:
            for method, path in routes:
                if method == "WS":
                    answer = refused(partial(whole.dial, path, token, path=""))
                else:
                    answer = client.request(method, path, json={})
                assert answer.status_code == 401, (method, path, token)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "status" not in answer.text or path == "/"


def test_the_token_opens_the_routes(whole: Served) -> None:
    with whole.http() as client:
        for path in ("/status", "/model", "/weights/0", "/v1/models", "/"):
            assert client.get(path).status_code == 200, path
    with whole.worker() as worker:
        assert worker.welcome["type"] == "welcome"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"bearer {TOKEN}"},
        {"authorization": f"BEARER {TOKEN}"},
    ],
)
def test_the_scheme_is_of_any_case(whole: Served, headers: dict[str, str]) -> None:
    assert httpx.get(f"{whole.server.url}/status", headers=headers, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"x-api-key": TOKEN},
        {"cookie": f"token={TOKEN}"},
        {"authorization": f"Bearer {TOKEN}, Bearer {TOKEN}"},
    ],
)
def test_the_token_counts_nowhere_else(whole: Served, headers: dict[str, str]) -> None:
    for path in ("/status", f"/status?token={TOKEN}", f"/status?access_token={TOKEN}"):
        answer = httpx.get(f"{whole.server.url}{path}", headers=headers, trust_env=False)
        assert answer.status_code == 401
    assert refused(lambda: whole.dial(f"w1?token={TOKEN}", None)).status_code == 401


def test_the_front_door_shows_the_page_that_asks_for_the_token(whole: Served) -> None:
    with whole.http(None) as client:
        answer = client.get("/")
        assert answer.status_code == 401
        assert answer.content == page()
        assert answer.headers["content-security-policy"] == PAGE_HEADERS["Content-Security-Policy"]
        assert client.post("/").headers["content-type"] == "application/json"
        assert client.get("/status").json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect"])
def test_the_api_describes_itself_to_nobody(whole: Served, path: str) -> None:
    with whole.http() as client:
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "file://", "{own}.evil.example", "x://{host}"]
)
def test_pages_of_other_sites_are_refused(whole: Served, origin: str) -> None:
    sent = origin.format(own=whole.server.url, host=whole.server.url.removeprefix("http://"))
    with whole.http(origin=sent) as client:
        assert client.get("/status").status_code == 403
        assert client.post("/shutdown").status_code == 403
    assert refused(lambda: whole.dial(headers={"Origin": sent})).status_code == 403


def test_its_own_pages_are_not(whole: Served) -> None:
    with whole.http(origin=whole.server.url) as client:
        assert client.get("/status").status_code == 200
    with whole.dial("own-page", headers={"Origin": whole.server.url}):
        pass


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost:80@evil.example"]
)
def test_foreign_names_are_refused(whole: Served, host: str) -> None:
    with whole.http(host=host) as client:
        assert client.get("/status").status_code == 400
    # A client writes its own Host beside ours, and two are a foreign one too.
    assert refused(lambda: whole.dial(headers={"Host": host or "x"})).status_code == 400


def test_a_server_on_every_address_goes_by_any_address_but_not_by_any_name() -> None:
    names = HostNames("0.0.0.0", ["Train.example"])
    for name in ("10.1.2.3:80", "[fe80::1]:80", "localhost", "train.example:443"):
        assert names.include(name), name
    assert not names.include("evil.example")
    assert not HostNames("10.1.2.3").include("127.0.0.1")
    assert HostNames("::1").include("[::1]:80")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_others_reach_no_server_without_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="no token"), served(tmp_path, token=None, host=host):
        pass


def test_a_server_that_others_reach_through_a_proxy_wants_a_token() -> None:
    with pytest.raises(ConfigError, match=r"'a\.example' is allowed .* no token"):
        check_access("127.0.0.1", None, ["a.example"])
    check_access("127.0.0.1", None, ["localhost", "127.0.0.2"])
    check_access("127.0.0.1", TOKEN, ["a.example"])


@pytest.mark.parametrize(
    "token", ["short", "sixteen-letters-ü", "with a space in it", "line\nbreak-in-the-middle"]
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(ConfigError, match="token") as caught, served(tmp_path, token=token):
        pass
    assert token not in str(caught.value)


def test_without_a_token_this_machine_may_come_and_no_page(tmp_path: Path) -> None:
    with served(tmp_path, token=None) as here, here.http(None) as client:
        assert client.get("/status").status_code == 200
        assert client.get("/status", headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "name", ["..%2fshelf%2fsecret.txt", "secret.txt", "%2e%2e", "..%5csecret.txt", "config.json%00", "", "."]
)
def test_only_the_models_own_files_are_fetched(whole: Served, name: str) -> None:
    with whole.http() as client:
        answer = client.get(f"/model/{name}", follow_redirects=False)
    assert answer.status_code in (200, 307, 404)
    assert "not to be fetched" not in answer.text
    assert answer.status_code != 200 or answer.json()["files"]


def test_files_come_whole_and_in_ranges(whole: Served) -> None:
    with whole.http() as client:
        assert len(client.get("/weights/0/data").content) == 3_000_000
        part = client.get("/weights/0/data", headers={"range": "bytes=2999990-"})
        assert (part.status_code, len(part.content)) == (206, 10)
        for path in ("/weights/1", "/weights/1/data"):
            assert client.get(path).status_code == 404
        for path in ("/weights/x", "/weights/-1", "/weights/99999999999999999999"):
            assert client.get(path).status_code == 422
        assert client.get("/status").headers["x-content-type-options"] == "nosniff"


def test_bodies_are_bounded_whether_their_length_is_told_or_not(tmp_path: Path) -> None:
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


def test_pickles_are_no_messages_and_no_bodies(whole: Served) -> None:
    code = pickle.dumps(Path)
    with whole.http() as client:
        for path in ("/v1/chat/completions", "/v1/completions"):
            assert 400 <= client.post(path, content=code).status_code < 500
    with whole.worker("pickler") as worker:
        worker.socket.send(code)
        assert worker.hear()["code"] == "malformed"
        assert worker.socket.ping().wait(30)


def test_who_comes_too_often_is_told_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_trainer.remote.server.RateLimit", partial(RateLimit, clock=lambda: 0.0))
    with served(tmp_path, limits=Limits(requests_per_second=1, burst=5)) as here:
        with here.http("wrong-token-of-some-length") as client:
            codes = [client.get("/status").status_code for _ in range(8)]
            assert codes == [401] * 5 + [429] * 3
            assert client.get("/status").headers["retry-after"] == "1"
        assert refused(here.dial).status_code == 429


def test_a_bucket_fills_again_and_others_have_their_own() -> None:
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


def test_so_many_sockets_and_no_more(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(sockets=2)) as here:
        with here.dial("w1"), here.dial("w2"):
            answer = refused(lambda: here.dial("w3"))
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "too_many_connections"

        def one_may_come_again() -> bool:
            with contextlib.suppress(InvalidStatus), here.dial("w3"):
                return True
            return False

        until(one_may_come_again)


def test_who_sends_its_request_a_letter_at_a_time_is_cut_off(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(head_seconds=0.2)) as here:
        address = ("127.0.0.1", int(here.server.url.rpartition(":")[2]))
        with socket.create_connection(address, 30) as silent, socket.create_connection(address, 30) as slow:
            slow.sendall(b"GET /status HTTP/1.1\r\nHost: loc")
            assert silent.recv(100) == b""
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(100) == b""


def lasts(address: str, seconds: float) -> tuple[bool, float]:
    """Whether one connection that is used lasts so long, and the longest pause in its use."""
    began = asked = time.monotonic()
    longest = 0.0
    line = http.client.HTTPConnection(address, timeout=30)
    with contextlib.closing(line):
        line.connect()
        line.auto_open = 0  # one that is cut off is not opened again
        while asked - began < seconds:
            try:
                line.request("GET", "/status", headers={"Authorization": f"Bearer {TOKEN}"})
                assert line.getresponse().read()
            except (ConnectionError, http.client.NotConnected):
                return False, time.monotonic() - asked
            time.sleep(0.1)
            longest, asked = max(longest, time.monotonic() - asked), time.monotonic()
    return True, longest


def test_a_connection_that_is_used_is_not_cut_off(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(head_seconds=0.4)) as here:
        lasted, pause = False, 1.0
        while not lasted and pause > 0.2:  # a machine that paused has shown nothing
            lasted, pause = lasts(here.server.url.removeprefix("http://"), 0.5)
        assert lasted


def test_who_says_no_hello_is_cut_off(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(hello_seconds=0.2)) as here, here.dial("idle") as idle:
        assert json.loads(idle.recv(30))["code"] == "no_hello"
        with pytest.raises(ConnectionClosed):
            idle.recv(30)


def test_neither_logs_nor_addresses_hold_the_token(
    whole: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        for token in (TOKEN, "wrong-token-of-some-length"):
            with whole.http(token) as client:
                client.get("/status")
                client.post("/v1/chat/completions", content=b"{}")
        with whole.worker("logged") as worker:
            worker.say(type="nonsense")
            assert worker.hear()["type"] == "error"
            assert TOKEN not in json.dumps(worker.welcome)
    ours = [record for record in caplog.records if not record.name.startswith(("websockets", "httpcore"))]
    assert not [record for record in ours if TOKEN in record.getMessage()]
    assert TOKEN not in whole.server.url
    assert TOKEN not in whole.server.status().model_dump_json()
    assert TOKEN not in "".join(capfd.readouterr())
