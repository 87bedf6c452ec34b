"""One contract for all sinks: what is played arrives once, resumed or late, and no secret gets out."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from art_trainer.errors import ConfigError
from art_trainer.tracking.sinks.backfill import events_after
from art_trainer.tracking.sinks.base import (
    SINK_NAMES,
    EpisodesPlayed,
    EventRefusedError,
    SinkError,
    SinkUnavailableError,
    make_sink,
    make_sinks,
)
from art_trainer.tracking.sinks.delivery import sync_run
from art_trainer.tracking.sinks.http import HttpClient
from art_trainer.tracking.sinks.redaction import Redactor
from art_trainer.tracking.sinks.rows import dashboard_metrics
from tests.art_trainer.tracking.sinks.services import HOST, HTTP_KINDS, KINDS, Answer, HttpService, Service
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun
from tests.art_trainer.tracking.sinks.traced_episodes import played, run_info

MakeService = Callable[[str], Any]
pytestmark = pytest.mark.filterwarnings("ignore:.*filesystem tracking backend.*:FutureWarning")


def once(pairs: Any) -> dict[Any, Any]:
    """A mapping of pairs, no key of which may come twice."""
    listed = list(pairs)
    assert len({key for key, _ in listed}) == len(listed)
    return dict(listed)


def assert_arrived(service: Service, run: MadeRun) -> None:
    """The service has what the folder has, once."""
    if not isinstance(service, HttpService):
        expected = {
            (int(line["step"]), name): value
            for line in run.metrics()
            for name, value in dashboard_metrics(line).items()
        }
        assert once(service.metrics(run)) == pytest.approx(expected, rel=1e-6)  # TensorBoard's are float32
    rewards = {
        event.episode_id(index): episode.reward
        for event in events_after(run.folder)
        if isinstance(event, EpisodesPlayed)
        for index, episode in enumerate(event.episodes)
        if service.name != "tensorboard" or index == 0
    }
    assert once(service.rewards(run)) == pytest.approx(rewards, rel=1e-5)


def test_every_sink_is_held_to_the_contract() -> None:
    assert {*KINDS, "wandb"} == set(SINK_NAMES), "that of W&B has a file of its own"


@pytest.mark.parametrize("name", KINDS)
def test_a_run_and_its_resumption_arrive_whole(
    name: str, make_service: MakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service, run = make_service(name), MadeRun(tmp_path / "run", steps=4)
    assert run.deliver(service.sink(), last=2, outcome="interrupted").complete
    assert run.deliver(service.sink(), first=3).complete
    assert_arrived(service, run)
    assert [one for one in caplog.records if one.name.startswith("art_trainer")] == []


@pytest.mark.parametrize("name", KINDS)
def test_what_an_outage_held_back_a_sync_sends(
    name: str, make_service: MakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service, run = make_service(name), MadeRun(tmp_path / "run", steps=2)
    with service.outage(run):
        status = run.deliver(service.sink(), close_seconds=30.0)
        assert (status.complete, status.failures > 0) == (False, True)
        assert f"art-trainer sync {run.folder} --to {name}" in caplog.messages[-1]
    assert len(run.metrics()) == 2
    assert sync_run(run.folder, service.sink())[0].complete
    assert_arrived(service, run)


@pytest.mark.parametrize("name", HTTP_KINDS)
class TestHttp:
    @pytest.fixture
    def service(self, name: str, make_service: MakeService) -> HttpService:
        return make_service(name)

    @pytest.fixture
    def opened(self, service: HttpService, tmp_path: Path) -> Iterator[Callable[..., Any]]:
        """Open sinks of a run, which are closed in the end."""
        sinks = []

        def open_one(resume: Any = None, url: str | None = None) -> Any:
            settings = dict(service.settings) if url is None else service.settings_for(url)
            sinks.append(make_sink(service.name, settings))
            sinks[-1].open(run_info(tmp_path), resume=resume)
            return sinks[-1]

        yield open_one
        for sink in sinks:
            sink.close("finished")

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(500, "out of order"),
            Answer(400, '{"message": "no"}'),
            Answer(304),
            Answer(200, "<html>please log in</html>", "text/html"),
            Answer(200, "{", "application/json"),
            Answer(200, b"\xff\xfe\x00garbage", "application/x-protobuf"),
            Answer(200, "[1]"),
        ],
        ids=["500", "400", "304", "login page", "cut json", "bytes", "other json"],
    )
    def test_a_failure_is_raised_and_the_event_arrives_once_later(
        self, service: HttpService, opened: Callable[..., Any], tmp_path: Path, answer: Answer
    ) -> None:
        failing = 0 if service.name == "otel" else 1
        service.wrong = lambda number, request: answer if number == failing else None
        sink = opened()
        with pytest.raises(SinkError):
            sink.deliver(played())
        state = json.loads(json.dumps(sink.state()))
        opened(state).deliver(played())  # as in another process
        arrived, event = once(service.rewards(MadeRun(tmp_path / "run"))), played()
        for index, episode in enumerate(event.episodes):
            if episode.turns:
                assert arrived[event.episode_id(index)] == pytest.approx(episode.reward)

    def test_a_refused_key_is_reported_without_the_key(
        self, service: HttpService, opened: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        echo = json.dumps({"message": f"Invalid credentials {' '.join(service.secrets)}"})
        service.wrong = lambda number, request: Answer(401, echo)
        sink = opened()
        with pytest.raises(SinkUnavailableError, match=r"HTTP 401: .*Invalid") as caught:
            sink.deliver(played())
        shown = "".join(traceback.format_exception(caught.value))
        shown += f"{sink!r} {sink.state()} {caught.value!r} {caplog.text}"
        assert not [secret for secret in service.secrets if secret in shown]

    def test_a_dead_and_a_slow_server_are_failures(
        self, service: HttpService, opened: Callable[..., Any]
    ) -> None:
        def too_late(number: int, request: Any) -> Answer:
            raise httpx2.ReadTimeout("too late")

        service.wrong = too_late
        for sink in (opened(url="http://nobody"), opened()):
            assert sink.http._client.timeout.read <= 10
            with pytest.raises(SinkError) as failed:
                sink.deliver(played())
            assert not isinstance(failed.value, SinkUnavailableError | EventRefusedError)

    def test_a_password_file_does_not_replace_the_key(
        self, service: HttpService, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "netrc").write_text(f"machine {HOST} login someone password else\n")
        (tmp_path / "netrc").chmod(0o600)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        opened().deliver(played())
        sent = {request.headers.get("authorization", "") for request in service.taken}
        assert not any("c29tZW9uZTplbHNl" in header for header in sent)  # someone:else
        assert len(sent) == 1


def answered(status: int, text: str, *secrets: str) -> None:
    """Post to a server that answers this."""
    with pytest.MonkeyPatch.context() as patch:
        transport = httpx2.MockTransport(lambda request: httpx2.Response(status, text=text))
        patch.setattr(httpx2, "Client", partial(httpx2.Client, transport=transport))
        HttpClient(Redactor(secrets), {}, 1.0).post("http://server", "", "text/plain")


def test_a_secret_that_a_cut_would_split_is_masked_before() -> None:
    secret = "abcdefghijklmnopqrstuvwxyz"
    with pytest.raises(SinkError, match=r"x\*\*\*$") as caught:
        answered(500, "x" * 190 + secret, secret)
    assert "abcdef" not in str(caught.value)


@pytest.mark.parametrize("piece", ["a.", "a:", "://", "key=", "bearer ", "sk-", "authorization: "])
def test_a_long_reply_of_any_kind_is_read_in_a_moment(piece: str) -> None:
    start = time.process_time()
    with pytest.raises(SinkError) as caught:
        answered(500, piece * 500_000)
    assert time.process_time() - start < 20
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [(EventRefusedError, (400, 413, 422)), (SinkUnavailableError, (401, 403)), (SinkError, (404, 429, 503))],
)
def test_which_http_statuses_are_about_the_event(kind: type[SinkError], statuses: tuple[int, ...]) -> None:
    for status in statuses:
        with pytest.raises(SinkError) as caught:
            answered(status, "text")
        assert type(caught.value) is kind


@pytest.mark.parametrize("name", SINK_NAMES)
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf'pip install "art-gym\[{name}\]"'):
        make_sink(name, {})


@pytest.mark.parametrize(
    ("names", "settings", "words"),
    [
        (
            "langfuse,wandb",
            {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "ART_LOG_CLOSE_SECONDS": "soon"},
            "LANGFUSE_SECRET_KEY.*; .*ART_LOG_CLOSE_SECONDS",
        ),
        ("wandb", {"ART_LOG_CLOSE_SECONDS": "-1"}, "ART_LOG_CLOSE_SECONDS is .*: set a "),
        ("otel", {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TIMEOUT is .*: set a "),
    ],
)
def test_missing_and_wrong_settings_are_named(names: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_sinks(names.split(","), settings)


@pytest.mark.parametrize(
    ("name", "settings", "destination"),
    [
        ("wandb", {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": "http://here:1"}, "http://here:1"),
        ("otel", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://me:p4ss@o/own"}, "http://***@o/own"),
        ("otel", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://o/"}, "http://o/v1/traces"),
    ],
)
def test_the_destination_follows_from_the_settings(
    name: str, settings: dict[str, str], destination: str
) -> None:
    sink: Any = make_sink(name, settings)
    assert destination in vars(sink).values()
    assert "k" * 40 not in repr(sink)
