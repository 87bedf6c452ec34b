"""OpenTelemetry's conventions for generative AI, for any backend that speaks OTLP/HTTP.

An episode is an ``invoke_agent`` span over a ``chat`` span for each reply and an ``execute_tool`` span for
each action; its scores are ``gen_ai.evaluation.result`` events of the first. The conventions are in
development (https://opentelemetry.io/docs/specs/semconv/gen-ai/): their names are written out here, as the
package that has them moves them between releases. What they have no name for begins with ``art.``.

Trace and span ids follow from the run and the episode, so a backend that goes by them shows once what comes
twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from art_trainer.monitoring.events import (
    EpisodesPlayed,
    Event,
    Outcome,
    RunInfo,
    SinkError,
    SinkUnavailableError,
)
from art_trainer.monitoring.redaction import Redactor
from art_trainer.monitoring.traces import RunIdentity, Sampling, event_traces

if TYPE_CHECKING:
    from art_trainer.monitoring.genai_spans import GenAiSpans
    from art_trainer.monitoring.otlp import OtlpSender

_TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
_ALL = "OTEL_EXPORTER_OTLP_"


class OpenTelemetrySink:
    """Sends episodes as OpenTelemetry traces; implements :class:`art_trainer.monitoring.events.Sink`.

    Metrics and checkpoints pass unseen. What is left ``None`` is taken from the usual environment variables,
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` and its kin.

    Args:
        endpoint: The full address of the traces, such as ``http://localhost:4318/v1/traces``.
        headers: Of each request.
        timeout: Most seconds for one request.

    Attributes:
        name: As in ``--log``.
    """

    name = "otel"

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._headers = None if headers is None else dict(headers)
        self._timeout = timeout
        self._redactor = Redactor(self._headers.values() if self._headers else ())
        self._rejected = 0
        self._link: _Link | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """Build it from OpenTelemetry's variables, those for traces before those for all signals.

        What ``settings`` does not have is looked up in the environment.

        Raises:
            SinkUnavailableError: Where a timeout is no number.
        """

        def setting(name: str) -> str | None:
            return settings.get(name) or os.environ.get(name)

        endpoint = setting(f"{_TRACES}ENDPOINT")
        if endpoint is None and (base := setting(f"{_ALL}ENDPOINT")) is not None:
            endpoint = base.rstrip("/") + "/v1/traces"
        headers = setting(f"{_TRACES}HEADERS") or setting(f"{_ALL}HEADERS")
        timeout = setting(f"{_TRACES}TIMEOUT") or setting(f"{_ALL}TIMEOUT")
        try:
            seconds = None if timeout is None else float(timeout)
        except ValueError:
            raise SinkUnavailableError(f"{_ALL}TIMEOUT is a number of seconds, got {timeout!r}") from None
        return cls(endpoint, headers=_parsed(headers) if headers else None, timeout=seconds)

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a run, or go on with the one that ``resume`` names; nothing is sent yet.

        Raises:
            SinkUnavailableError: Where a package is missing.
        """
        try:
            from art_trainer.monitoring.genai_spans import GenAiSpans
            from art_trainer.monitoring.otlp import OtlpSender
        except ImportError as fault:
            raise SinkUnavailableError(
                f'otel needs a package that is missing ({fault.name}): pip install "art-gym[otel]"'
            ) from fault
        sender = OtlpSender(
            self._redactor, endpoint=self._endpoint, headers=self._headers, timeout=self._timeout
        )
        self._rejected = int((resume or {}).get("rejected", 0))
        self._link = _Link(RunIdentity.of(run, resume), Sampling.of(run), GenAiSpans(run), sender)

    def deliver(self, event: Event) -> None:
        """Send a step's episodes and wait for the server's word.

        Raises:
            SinkUnavailableError: Where the server refused the headers' key.
            SinkError: Where the server could not be reached, or did not take everything.
        """
        if isinstance(event, EpisodesPlayed):
            link = self._opened()
            traces = event_traces(event, link.identity, link.sampling)
            link.sender.send(span for trace in traces for span in link.writer.spans(trace))

    def flush(self) -> None:
        """Nothing is held back: what was delivered is there."""

    def state(self) -> dict[str, Any]:
        """The run's id and time, and how many spans the server refused of requests that it took."""
        link = self._opened()
        return {
            **link.identity.state(),
            "destination": self._redactor(self._endpoint or "as the environment says"),
            "rejected": self._rejected + link.sender.rejected,
        }

    def close(self, outcome: Outcome) -> None:
        """Give up the connection."""
        if self._link is not None:
            self._link.sender.close()

    def _opened(self) -> _Link:
        if self._link is None:
            raise SinkError("the otel sink was not opened")
        return self._link


@dataclass(frozen=True, slots=True)
class _Link:
    """What a sink has while it is open."""

    identity: RunIdentity
    sampling: Sampling
    writer: GenAiSpans
    sender: OtlpSender


def _parsed(headers: str) -> dict[str, str]:
    """Read ``name=value,name=value``, percent-encoded, as OpenTelemetry's variable has it."""
    pairs = (header.partition("=") for header in headers.split(","))
    return {unquote(name.strip()).lower(): unquote(value.strip()) for name, sign, value in pairs if sign}
