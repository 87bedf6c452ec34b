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
    sink_names,
)
from art_trainer.tracking.sinks.delivery import sync_run
from art_trainer.tracking.sinks.http import HttpClient
from art_trainer.tracking.sinks.redaction import Redactor
from art_trainer.tracking.sinks.rows import dashboard_metrics
from tests.art_trainer.tracking.sinks.receivers import HOST, SCORES, Answer, played, run_info, too_late
from tests.art_trainer.tracking.sinks.services import HTTP_KINDS, KINDS, HttpService, Service
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun

MakeService = Callable[[str], Service]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*filesystem tracking backend.*:FutureWarning"),
    # W&B's own temporary folders are removed when the interpreter ends, not before.
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


def assert_arrived(service: Service, run: MadeRun) -> None:
    """The service has what the folder has, once."""
    if service.shows_metrics:
        expected = {int(line["step"]): dashboard_metrics(line) for line in run.metrics()}
        found = service.metrics(run)
        assert found.keys() == expected.keys()
        for step, row in expected.items():
            assert found[step] == (pytest.approx(row, rel=1e-6) if service.stores_floats32 else row)
    rewards = {
        event.episode_id(index): episode.reward
        for event in events_after(run.folder)
        if isinstance(event, EpisodesPlayed)
        for index, episode in enumerate(event.episodes)
        if service.name != "tensorboard" or index == 0
    }
    assert service.rewards(run) == pytest.approx(rewards, rel=1e-5)


def test_every_sink_is_held_to_the_contract() -> None:
    assert set(KINDS) == set(SINK_NAMES)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_and_its_resumption_arrive_whole(
    name: str, make_service: MakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service, run = make_service(name), MadeRun(tmp_path / "run", steps=4)
    assert run.deliver(service.sink(), last=2, outcome="interrupted").complete
    assert run.deliver(service.sink(), first=3).complete
    assert_arrived(service, run)
    assert [one for one in caplog.records if one.name.startswith("art_trainer")] == []


@pytest.mark.parametrize("name", [name for name in KINDS if name != "wandb"])
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
        service = make_service(name)
        assert isinstance(service, HttpService)
        return service

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
        arrived, event = service.rewards(MadeRun(tmp_path / "run")), played()
        for index, episode in enumerate(event.episodes):
            if episode.turns:
                assert arrived[event.episode_id(index)] == pytest.approx(episode.reward)

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_refused_key_is_reported_without_the_key(
        self, service: HttpService, opened: Callable[..., Any], status: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        echo = json.dumps({"message": f"Invalid credentials {' '.join(service.secrets())}"})
        service.wrong = lambda number, request: Answer(status, echo)
        sink = opened()
        with pytest.raises(SinkUnavailableError, match=f"HTTP {status}: .*Invalid") as caught:
            sink.deliver(played())
        shown = "".join(traceback.format_exception(caught.value))
        shown += f"{sink!r} {sink.state()} {caught.value!r} {caplog.text}"
        assert not [secret for secret in service.secrets() if secret in shown]

    def test_a_dead_and_a_slow_server_are_failures(
        self, service: HttpService, opened: Callable[..., Any]
    ) -> None:
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
        sent = {request.headers.get("authorization", "") for request in service.receiver.taken}
        assert not any("c29tZW9uZTplbHNl" in header for header in sent)  # someone:else
        assert len(sent) == 1


PARTIAL_JSON = Answer(
    200, '{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "bad value s3cr3t/value"}}'
)
PARTIAL_BYTES = Answer(200, b"\x0a\x02\x08\x02", "application/x-protobuf")  # 2 rejected spans
REFUSED_SCORES = Answer(207, '{"rejected": 2, "errors": [{"message": "bad value sk-lf-fedcba9876543210"}]}')


@pytest.mark.parametrize(
    ("name", "answer"), [("otel", PARTIAL_JSON), ("otel", PARTIAL_BYTES), ("langfuse", REFUSED_SCORES)]
)
def test_refused_items_of_an_accepted_request_are_logged(
    name: str, answer: Answer, make_service: MakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service(name)
    assert isinstance(service, HttpService)
    service.wrong = lambda number, request: answer if request.path in (SCORES, "/v1/traces") else None
    sink = service.sink()
    sink.open(run_info(tmp_path), resume=None)
    sink.deliver(played())
    sink.close("finished")
    assert "refused 2 items" in caplog.text
    assert not [secret for secret in service.secrets() if secret in caplog.text]


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
    assert time.process_time() - start < 1
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EventRefusedError),
        (413, EventRefusedError),
        (422, EventRefusedError),
        (401, SinkUnavailableError),
        (404, SinkError),
        (429, SinkError),
        (503, SinkError),
    ],
)
def test_which_http_statuses_are_about_the_event(status: int, kind: type[SinkError]) -> None:
    with pytest.raises(SinkError) as caught:
        answered(status, "text")
    assert type(caught.value) is kind


class TestRegistry:
    def test_names_are_parsed_from_lists_and_strings(self) -> None:
        assert sink_names("wandb, tensorboard,,wandb") == ("wandb", "tensorboard")
        assert sink_names(["otel"]) == ("otel",)
        assert sink_names("") == sink_names(()) == ()
        with pytest.raises(ConfigError, match="no sink `wanbd`; did you mean `wandb`"):
            sink_names("tensorboard,wanbd")

    @pytest.mark.parametrize("name", SINK_NAMES)
    def test_a_missing_package_names_the_extra(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
        with pytest.raises(ConfigError, match=rf'pip install "art-gym\[{name}\]"'):
            make_sink(name, {})

    def test_all_missing_settings_are_named_at_once(self) -> None:
        with pytest.raises(ConfigError, match=r"LANGFUSE_SECRET_KEY.*; openpipe needs OPENPIPE_API_KEY"):
            make_sinks(["langfuse", "openpipe"], {"LANGFUSE_PUBLIC_KEY": "pk-lf-1"})

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("wandb", {"ART_LOG_TABLE_SECONDS": "soon"}),
            ("wandb", {"ART_LOG_CLOSE_SECONDS": "-1"}),
            ("wandb", {"ART_LOG_TABLE_EPISODES": "0"}),
            ("otel", {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}),
        ],
    )
    def test_numbers_are_checked(self, name: str, settings: dict[str, str]) -> None:
        with pytest.raises(SinkUnavailableError, match=rf"{next(iter(settings))} is .*: set a "):
            make_sink(name, settings)

    @pytest.mark.parametrize(
        ("name", "settings", "destination"),
        [
            ("wandb", {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": "http://here:1"}, "http://here:1"),
            ("mlflow", {"MLFLOW_TRACKING_URI": "http://there"}, "http://there"),
            ("otel", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://me:p4ss@o/own"}, "http://***@o/own"),
            ("otel", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://o/"}, "http://o/v1/traces"),
            ("openpipe", {"OPENPIPE_API_KEY": "k"}, "https://api.openpipe.ai/api/v1"),
        ],
    )
    def test_the_destination_follows_from_the_settings(
        self, name: str, settings: dict[str, str], destination: str
    ) -> None:
        sink: Any = make_sink(name, settings)
        if name in HTTP_KINDS:
            assert sink.destination == destination
        else:
            assert destination in vars(sink).values()
        assert "k" * 40 not in repr(sink)
