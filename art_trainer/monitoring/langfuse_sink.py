"""Langfuse: an observation tree and scores for every episode, one session for a run.

Spans go over OTLP and scores to the scores endpoint through the SDK's API client. The SDK's own tracer and
score queue are not used: they log a failure and drop what failed, and their ``flush`` waits for a dead server
for 20 s. Here each failure is raised, so that it is counted and what failed is sent again later.

Trace, observation and score ids follow from the run and the episode, and Langfuse goes by them: what comes
twice replaces itself. A score is replaced only where its time is the same too, so scores have a time that
follows from the step.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, cast

from art_trainer.monitoring.events import (
    EpisodesPlayed,
    Event,
    Outcome,
    RunInfo,
    SinkError,
    SinkUnavailableError,
)
from art_trainer.monitoring.redaction import Redactor
from art_trainer.monitoring.replies import excerpt, nonsense, refusal
from art_trainer.monitoring.traces import RunIdentity, Sampling, Trace, event_traces, short_digest

if TYPE_CHECKING:
    import httpx
    from langfuse.api import LangfuseAPI
    from langfuse.api.scores.types import CreateScoresRequest

    from art_trainer.monitoring.langfuse_spans import LangfuseSpans
    from art_trainer.monitoring.otlp import OtlpSender

DEFAULT_HOST = "https://cloud.langfuse.com"
_SCORES_A_REQUEST = 500  # the endpoint takes 1 MB; a score is some 300 bytes


class LangfuseSink:
    """Shows episodes in Langfuse; implements :class:`art_trainer.monitoring.events.Sink`.

    Metrics and checkpoints are not for Langfuse and pass unseen.

    Args:
        public_key: Of the project.
        secret_key: Of the project.
        host: Address of the server.
        timeout: Most seconds for one request.

    Attributes:
        name: As in ``--log``.
    """

    name = "langfuse"

    def __init__(
        self, public_key: str, secret_key: str, host: str = DEFAULT_HOST, *, timeout: float = 5.0
    ) -> None:
        self._keys = (public_key, secret_key)
        self._host = host.rstrip("/")
        self._timeout = timeout
        self._redactor = Redactor(pairs=[self._keys])
        self._rejected = 0
        self._rejected_why = ""
        # The public key names the project; of it only so much that another project can be told from this.
        self._destination = f"{self._redactor(self._host)} project {short_digest(public_key)}"
        self._link: _Link | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """Build it from ``LANGFUSE_PUBLIC_KEY``, ``LANGFUSE_SECRET_KEY`` and ``LANGFUSE_HOST``.

        Raises:
            SinkUnavailableError: Where a key is missing.
        """
        missing = [name for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY") if not settings.get(name)]
        if missing:
            raise SinkUnavailableError(
                f"langfuse needs {' and '.join(missing)}, in the environment or in .env"
            )
        host = settings.get("LANGFUSE_HOST") or DEFAULT_HOST
        return cls(settings["LANGFUSE_PUBLIC_KEY"], settings["LANGFUSE_SECRET_KEY"], host)

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a session, or go on with the one that ``resume`` names; nothing is sent yet.

        Raises:
            SinkUnavailableError: Where a package is missing.
        """
        identity = RunIdentity.of(run, resume)
        if resume is not None:
            self._rejected = int(resume.get("rejected", 0))
            self._rejected_why = str(resume.get("rejected_why", ""))
        self._link = self._connect(run, identity)

    def deliver(self, event: Event) -> None:
        """Send a step's episodes, spans first, and wait for the server's word.

        Raises:
            SinkUnavailableError: Where the keys were refused.
            SinkError: Where the server could not be reached, or did not take everything.
        """
        if isinstance(event, EpisodesPlayed):
            link = self._opened()
            traces = list(event_traces(event, link.identity, link.sampling))
            link.sender.send(span for trace in traces for span in link.writer.spans(trace))
            scores = [score for trace in traces for score in score_bodies(trace)]
            for start in range(0, len(scores), _SCORES_A_REQUEST):
                self._send_scores(link.api, scores[start : start + _SCORES_A_REQUEST])

    def flush(self) -> None:
        """Nothing is held back: what was delivered is there."""

    def state(self) -> dict[str, Any]:
        """The session's id and time, and how much the server refused of requests that it took."""
        link = self._opened()
        rejected = self._rejected + link.sender.rejected
        return {
            **link.identity.state(),
            "destination": self._destination,
            "rejected": rejected,
            "rejected_why": self._rejected_why,
        }

    def close(self, outcome: Outcome) -> None:
        """Give up the connections."""
        if self._link is not None:
            self._link.sender.close()
            self._link.http.close()

    def _connect(self, run: RunInfo, identity: RunIdentity) -> _Link:
        try:
            import httpx
            import langfuse
            from langfuse.api import LangfuseAPI

            from art_trainer.monitoring.langfuse_spans import LangfuseSpans
            from art_trainer.monitoring.otlp import OtlpSender
        except ImportError as fault:
            raise SinkUnavailableError(
                f'langfuse needs a package that is missing ({fault.name}): pip install "art-gym[langfuse]"'
            ) from fault
        public, secret = self._keys
        password = base64.b64encode(f"{public}:{secret}".encode()).decode()
        headers = {
            "Authorization": f"Basic {password}",
            # The server reads the attributes as the SDK of this name and version writes them.
            "x-langfuse-sdk-name": "python",
            "x-langfuse-sdk-version": langfuse.__version__,
            "x-langfuse-public-key": public,
            "x-langfuse-ingestion-version": "4",
        }
        endpoint = f"{self._host}/api/public/otel/v1/traces"
        sender = OtlpSender(self._redactor, endpoint=endpoint, headers=headers, timeout=self._timeout)
        http = httpx.Client(timeout=self._timeout)
        api = LangfuseAPI(
            base_url=self._host,
            username=public,
            password=secret,
            x_langfuse_sdk_name="python",
            x_langfuse_sdk_version=langfuse.__version__,
            x_langfuse_public_key=public,
            httpx_client=http,
            timeout=self._timeout,
        )
        return _Link(identity, Sampling.of(run), LangfuseSpans(run), sender, http, api)

    def _opened(self) -> _Link:
        if self._link is None:
            raise SinkError("the langfuse sink was not opened")
        return self._link

    def _send_scores(self, api: LangfuseAPI, scores: Sequence[Mapping[str, Any]]) -> None:
        """Send scores; where the server refuses some of them it is not asked again, as its API wants it."""
        import httpx
        from langfuse.api.core import ApiError

        try:
            # Plain mappings with the API's names, as the SDK's own queue sends them.
            request = cast("CreateScoresRequest", scores)
            reply = api.scores.create(request=request, request_options={"max_retries": 0})
        except ApiError as fault:
            status, body = fault.status_code, fault.body
            if status is not None and status >= 300:
                raise refusal(status, body, self._redactor) from None
            raise nonsense("scores", body, self._redactor) from None
        except httpx.HTTPError as fault:
            raise SinkError(f"scores were not delivered: {self._redactor(repr(fault))}") from None
        except ValueError as fault:
            # The client reads the reply by its schema; what does not fit it raises pydantic's ValueError.
            raise nonsense("scores", fault, self._redactor) from None
        rejected = getattr(reply, "rejected", 0)
        if rejected:
            self._rejected += rejected
            first = next((error.message for error in getattr(reply, "errors", ())), "")
            self._rejected_why = excerpt(first, self._redactor)


@dataclass(frozen=True, slots=True)
class _Link:
    """What a sink has while it is open."""

    identity: RunIdentity
    sampling: Sampling
    writer: LangfuseSpans
    sender: OtlpSender
    http: httpx.Client
    api: LangfuseAPI


def score_bodies(trace: Trace) -> Iterator[dict[str, Any]]:
    """A trace's scores, as the body of the scores endpoint has them."""
    when = datetime.fromtimestamp(trace.scored_ns / 1e9, UTC).isoformat(timespec="milliseconds")
    for score in trace.scores:
        yield {
            "id": score.score_id,
            "traceId": trace.trace_id,
            "name": score.name,
            "value": int(score.value) if score.boolean else score.value,
            "dataType": "BOOLEAN" if score.boolean else "NUMERIC",
            "timestamp": when,
            **({"comment": score.comment} if score.comment else {}),
        }
