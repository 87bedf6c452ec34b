"""The services behind the sinks: real stores in a folder, receivers in memory, and what arrived there."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from art_trainer.tracking.sinks.base import Sink, make_sink
from tests.art_trainer.tracking.sinks.receivers import (
    HOST,
    PUBLIC,
    SCORES,
    SECRET,
    Answer,
    Receiver,
    scores_in,
    spans_in,
)
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun

Metrics = dict[int, dict[str, float]]
"""By step and name in dashboards."""
Rewards = dict[str, float]
"""By episode id."""


class Service:
    """A service of one kind; a test has one of its own."""

    shows_metrics = True
    stores_floats32 = False
    settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    def sink(self) -> Sink:
        return make_sink(self.name, self.settings)

    @contextmanager
    def outage(self, run: MadeRun) -> Iterator[None]:
        """For as long the service takes nothing: a file is where its folder should be."""
        place = self.place(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("no folder")
        yield
        place.unlink()

    def place(self, run: MadeRun) -> Path:
        raise NotImplementedError

    def metrics(self, run: MadeRun) -> Metrics:
        """What arrived; fails if something did twice."""
        return {}

    def rewards(self, run: MadeRun) -> Rewards:
        raise NotImplementedError


class Wandb(Service):
    def metrics(self, run: MadeRun) -> Metrics:
        from tests.art_trainer.tracking.sinks.wandb_files import read_wandb

        own = ("_step", "_runtime", "_timestamp", "step")
        rows = [row for row in read_wandb(run.folder).history if "episodes" not in row]
        return _by_step((row["step"], {k: v for k, v in row.items() if k not in own}) for row in rows)

    def rewards(self, run: MadeRun) -> Rewards:
        from tests.art_trainer.tracking.sinks.wandb_files import read_wandb

        return _once((row[1], row[2]) for row in read_wandb(run.folder).tables["episodes"])


class TensorBoard(Service):
    stores_floats32 = True

    def place(self, run: MadeRun) -> Path:
        return run.folder / "tensorboard"

    def read(self, run: MadeRun) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        sizes = {"scalars": 0, "tensors": 0}
        return EventAccumulator(str(run.folder / "tensorboard"), size_guidance=sizes).Reload()

    def metrics(self, run: MadeRun) -> Metrics:
        read, found = self.read(run), {}
        for name in read.Tags()["scalars"]:
            for event in read.Scalars(name):
                row = found.setdefault(event.step, {})
                assert name not in row
                row[name] = event.value
        return found

    def rewards(self, run: MadeRun) -> Rewards:
        texts = [
            event.tensor_proto.string_val[0].decode()
            for event in self.read(run).Tensors("episode/text_summary")
        ]
        heads = [text.partition(":") for text in texts]
        return _once((head, float(rest.split()[1].strip(","))) for head, _, rest in heads)


class Trackio(Service):
    def place(self, run: MadeRun) -> Path:
        return self.folder / "trackio"

    def _logs(self) -> list[dict[str, Any]]:
        from trackio.sqlite_storage import SQLiteStorage

        assert SQLiteStorage.get_runs("art-tests") == ["run"]
        logs: list[dict[str, Any]] = SQLiteStorage.get_logs("art-tests", "run")
        return logs

    def metrics(self, run: MadeRun) -> Metrics:
        rows = [row for row in self._logs() if "episodes" not in row]
        own = ("timestamp", "step")
        return _by_step((row["step"], {k: v for k, v in row.items() if k not in own}) for row in rows)

    def rewards(self, run: MadeRun) -> Rewards:
        tables = [row["episodes"]["_value"] for row in self._logs() if "episodes" in row]
        return _once((row["episode_id"], row["total_reward"]) for table in tables for row in table)


class Mlflow(Service):
    def place(self, run: MadeRun) -> Path:
        return self.folder / "mlruns"

    def client(self, run: MadeRun) -> tuple[Any, str]:
        from mlflow import MlflowClient

        state = json.loads((run.folder / "sinks" / "mlflow.json").read_text())["state"]
        return MlflowClient(tracking_uri=state["destination"]), state["id"]

    def metrics(self, run: MadeRun) -> Metrics:
        client, run_id = self.client(run)
        found: Metrics = {}
        for name in client.get_run(run_id).data.metrics:
            for metric in client.get_metric_history(run_id, name):
                row = found.setdefault(metric.step, {})
                assert name not in row
                row[name] = metric.value
        return found

    def rewards(self, run: MadeRun) -> Rewards:
        client, run_id = self.client(run)
        folder = Path(client.get_run(run_id).info.artifact_uri.removeprefix("file://")) / "episodes"
        rows = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
        return _once((row["episode_id"], row["total_reward"]) for row in rows)


class HttpService(Service):
    """A receiver that takes everything, unless it is told to give another answer."""

    shows_metrics = False

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.wrong: Callable[[int, Any], Answer | None] = lambda number, request: None
        self.accepted: list[Any] = []
        self.receiver = Receiver(self._answer)
        self.settings = self.settings_for(f"http://{HOST}")

    def _answer(self, number: int, request: Any) -> Answer:
        if (wrong := self.wrong(number, request)) is not None:
            return wrong
        self.accepted.append(request)
        return self.taken(request)

    def taken(self, request: Any) -> Answer:
        return Answer(200, "{}")

    def settings_for(self, url: str) -> dict[str, str]:
        raise NotImplementedError

    def secrets(self) -> tuple[str, ...]:
        raise NotImplementedError

    def arrived(self) -> list[Any]:
        """What was taken, as plain data."""
        raise NotImplementedError

    @contextmanager
    def outage(self, run: MadeRun) -> Iterator[None]:
        self.wrong = lambda number, request: Answer(503, "down for maintenance")
        yield
        self.wrong = lambda number, request: None


class Langfuse(HttpService):
    def settings_for(self, url: str) -> dict[str, str]:
        return {"LANGFUSE_PUBLIC_KEY": PUBLIC, "LANGFUSE_SECRET_KEY": SECRET, "LANGFUSE_HOST": url}

    def taken(self, request: Any) -> Answer:
        return Answer(202, '{"message": "Accepted"}') if request.path == SCORES else Answer(200, "{}")

    def secrets(self) -> tuple[str, ...]:
        return PUBLIC, SECRET, base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()

    def arrived(self) -> list[Any]:
        return [*spans_in(self.receiver.taken), *scores_in(self.receiver.taken)]

    def rewards(self, run: MadeRun) -> Rewards:
        traces = {
            span["trace"]: json.loads(span["attributes"]["langfuse.observation.metadata.episode_id"])
            for span in spans_in(self.receiver.taken)
            if not span["parent"]
        }
        scores = [score for score in scores_in(self.receiver.taken) if score["name"] == "reward"]
        ids = {(score["id"], score["timestamp"]): score for score in scores}  # by these Langfuse goes
        return _once((traces[score["traceId"]], score["value"]) for score in ids.values())


class OpenTelemetry(HttpService):
    def settings_for(self, url: str) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=s3cr3t%2Fvalue"}

    def secrets(self) -> tuple[str, ...]:
        return ("s3cr3t/value",)

    def arrived(self) -> list[Any]:
        return spans_in(self.receiver.taken, "/v1/traces")

    def rewards(self, run: MadeRun) -> Rewards:
        spans = spans_in(self.receiver.taken, "/v1/traces")
        agents = {(span["trace"], span["id"]): span["attributes"] for span in spans if not span["parent"]}
        return _once((about["art.episode_id"], about["art.reward"]) for about in agents.values())


class OpenPipe(HttpService):
    def settings_for(self, url: str) -> dict[str, str]:
        return {"OPENPIPE_API_KEY": "opk-0123456789", "OPENPIPE_BASE_URL": f"{url}/api/v1"}

    def taken(self, request: Any) -> Answer:
        return Answer(200, '{"status": "ok"}')

    def secrets(self) -> tuple[str, ...]:
        return ("opk-0123456789",)

    def arrived(self) -> list[Any]:
        found = [json.loads(request.body) for request in self.receiver.taken]  # they come side by side
        return sorted(found, key=lambda report: [report["tags"][key] for key in ("episode_id", "turn")])

    def rewards(self, run: MadeRun) -> Rewards:
        tags = [json.loads(request.body)["tags"] for request in self.accepted]
        assert len({tag["report_id"] for tag in tags}) == len(tags)
        return {tag["episode_id"]: tag["episode_reward"] for tag in tags}


KINDS: dict[str, type[Service]] = {
    "wandb": Wandb,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "mlflow": Mlflow,
    "langfuse": Langfuse,
    "otel": OpenTelemetry,
    "openpipe": OpenPipe,
}
HTTP_KINDS = tuple(name for name, kind in KINDS.items() if issubclass(kind, HttpService))


def _by_step(rows: Any) -> Metrics:
    return {int(step): row for step, row in _once(rows).items()}


def _once(pairs: Any) -> dict[Any, Any]:
    listed = list(pairs)
    assert len({key for key, _ in listed}) == len(listed)
    return dict(listed)
