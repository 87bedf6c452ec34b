"""OpenPipe: every request and reply of the policy as its reporting endpoint takes them, with tags and reward.

The wire format is that of ``POST /report`` (https://docs.openpipe.ai/api-reference/post-report), which the
last release of OpenPipe's own client, 5.0.0, sends too. That client is not used: it holds openai below 1.98
and anthropic below 0.50, and its wrapper prints failures and drops what failed.

Reports have no ids by which OpenPipe would know a second delivery. So this sink remembers which of a step's
reports were taken, also of a step that was set aside, and sends only the others; a report whose answer was
lost on its way may come twice, and has the same ``report_id`` in its metadata both times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from art_trainer.monitoring.events import (
    EpisodesPlayed,
    Event,
    EventRefusedError,
    Outcome,
    RunInfo,
    SinkError,
    SinkUnavailableError,
)
from art_trainer.monitoring.redaction import Redactor
from art_trainer.monitoring.replies import nonsense, refusal
from art_trainer.monitoring.traces import (
    Generation,
    RunIdentity,
    Sampling,
    Trace,
    event_traces,
    messages_before,
)

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "https://api.openpipe.ai/api/v1"
Tag = str | float | bool


class OpenPipeSink:
    """Reports replies to OpenPipe; implements :class:`art_trainer.monitoring.events.Sink`.

    Metrics and checkpoints pass unseen.

    Args:
        api_key: Of the project.
        base_url: Address of the API.
        timeout: Most seconds without a sign of life from the server.
        connections: How many reports are under way at one time: an answer is slow, a step has many reports.

    Attributes:
        name: As in ``--log``.
    """

    name = "openpipe"

    def __init__(
        self, api_key: str, base_url: str = DEFAULT_URL, *, timeout: float = 5.0, connections: int = 8
    ) -> None:
        self._key = api_key
        self._url = base_url.rstrip("/")
        self._timeout = timeout
        self._connections = connections
        self._redactor = Redactor([api_key])
        self._destination = self._redactor(self._url)
        self._progress: dict[int, _Progress] = {}
        """Of the newest step, and of those that are not whole."""
        self._run: RunInfo | None = None
        self._identity = RunIdentity("", 0)
        self._http: httpx.Client | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """Build it from ``OPENPIPE_API_KEY`` and ``OPENPIPE_BASE_URL``.

        Raises:
            SinkUnavailableError: Where the key is missing.
        """
        if not settings.get("OPENPIPE_API_KEY"):
            raise SinkUnavailableError("openpipe needs OPENPIPE_API_KEY, in the environment or in .env")
        return cls(settings["OPENPIPE_API_KEY"], settings.get("OPENPIPE_BASE_URL") or DEFAULT_URL)

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin a run, or go on after the reports that ``resume`` counts; nothing is sent yet.

        Raises:
            SinkUnavailableError: Where a package is missing.
        """
        try:
            import httpx
        except ImportError as fault:
            raise SinkUnavailableError('openpipe needs httpx: pip install "art-gym[openpipe]"') from fault
        self._run, self._identity = run, RunIdentity.of(run, resume)
        if resume is not None and resume.get("destination") == self._destination:
            known = (_Progress.from_json(kept) for kept in resume.get("progress", ()))
            self._progress = {progress.step: progress for progress in known}
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        self._http = httpx.Client(timeout=self._timeout, headers=headers)

    def deliver(self, event: Event) -> None:
        """Report a step's replies, a few at one time.

        Raises:
            SinkUnavailableError: Where the key was refused.
            EventRefusedError: Where a report was refused for what it is; all others were sent.
            SinkError: Where the server could not be reached, or did not take a report; those that it took
                are not sent again.
        """
        if not isinstance(event, EpisodesPlayed):
            return
        run = self._opened()
        progress = self._progress.setdefault(event.step, _Progress(event.step))
        traces = event_traces(event, self._identity, Sampling.of(run))
        reports = enumerate(report for trace in traces for report in openpipe_reports(trace, run))
        waiting = (numbered for numbered in reports if not progress.has(numbered[0]))
        refused: EventRefusedError | None = None
        while batch := list(islice(waiting, self._connections)):
            try:
                self._post_together(batch, progress)
            except EventRefusedError as fault:
                refused = fault
        if refused is not None:
            raise refused
        progress.whole = True
        self._progress = {
            step: known for step, known in self._progress.items() if step == event.step or not known.whole
        }

    def flush(self) -> None:
        """Nothing is held back: what was delivered is there."""

    def state(self) -> dict[str, Any]:
        """The run's id and time, and which reports were taken of the steps that it has to know of."""
        return {
            **self._identity.state(),
            "destination": self._destination,
            "progress": [progress.to_json() for progress in self._progress.values()],
        }

    def close(self, outcome: Outcome) -> None:
        """Give up the connection."""
        if self._http is not None:
            self._http.close()

    def _opened(self) -> RunInfo:
        if self._run is None:
            raise SinkError("the openpipe sink was not opened")
        return self._run

    def _post_together(self, batch: Sequence[tuple[int, dict[str, Any]]], progress: _Progress) -> None:
        """Post reports, each on a thread of its own; where some failed raise one's error, a refusal last."""
        faults: list[SinkError] = []
        taken: list[int] = []

        def post(number: int, report: Mapping[str, Any]) -> None:
            try:
                self._post(report)
            except SinkError as fault:
                faults.append(fault)
            else:
                taken.append(number)

        # Daemons: the end of the program does not wait for a server.
        threads = [Thread(target=post, args=numbered, daemon=True) for numbered in batch]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        progress.note(taken)
        if len(taken) < len(batch):
            faults.sort(key=lambda fault: isinstance(fault, EventRefusedError))
            raise faults[0] if faults else SinkError("a report could not be made")

    def _post(self, report: Mapping[str, Any]) -> None:
        import httpx

        assert self._http is not None
        try:
            reply = self._http.post(f"{self._url}/report", content=json.dumps(report, default=str))
        except httpx.HTTPError as fault:
            raise SinkError(f"a report was not delivered: {self._redactor(repr(fault))}") from None
        if not reply.is_success:
            raise refusal(reply.status_code, reply.text, self._redactor)
        try:
            taken = reply.json()["status"] == "ok"
        except (ValueError, KeyError, TypeError):
            taken = False
        if not taken:
            raise nonsense("reports", reply.text, self._redactor)


@dataclass(slots=True)
class _Progress:
    """Which of a step's reports were taken."""

    step: int
    taken: int = 0
    """The first so many, and"""
    beyond: set[int] = field(default_factory=set)
    """these after them."""
    whole: bool = False
    """All of them."""

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> _Progress:
        return cls(int(kept["step"]), int(kept["taken"]), set(kept["beyond"]), bool(kept["whole"]))

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "taken": self.taken,
            "beyond": sorted(self.beyond),
            "whole": self.whole,
        }

    def has(self, number: int) -> bool:
        return number < self.taken or number in self.beyond

    def note(self, numbers: Iterable[int]) -> None:
        self.beyond.update(numbers)
        while self.taken in self.beyond:
            self.beyond.remove(self.taken)
            self.taken += 1


def openpipe_reports(trace: Trace, run: RunInfo) -> Iterator[dict[str, Any]]:
    """A trace's replies as bodies of ``POST /report``, in order."""
    for generation in trace.generations:
        tags = _tags(trace, generation, run)
        yield {
            "requestedAt": generation.start_ns // 1_000_000,
            "receivedAt": generation.end_ns // 1_000_000,
            "reqPayload": _request(trace, generation, tags),
            "respPayload": _completion(trace, generation),
            "statusCode": 200,
            # In the API's words deprecated in favour of the request's metadata, which holds strings only;
            # its own client still sends them, and a number can be compared with.
            "tags": tags,
        }


def _request(trace: Trace, generation: Generation, tags: Mapping[str, Tag]) -> dict[str, Any]:
    sampling = trace.sampling
    options = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_completion_tokens": sampling.max_tokens,
        "tools": [dict(tool) for tool in trace.episode.tools] or None,
    }
    return {
        "model": sampling.model,
        "messages": messages_before(trace.episode, generation.turn),
        **{name: value for name, value in options.items() if value is not None},
        "metadata": {name: _word(value) for name, value in tags.items()},
    }


def _completion(trace: Trace, generation: Generation) -> dict[str, Any]:
    """A reply in the form of OpenAI's chat completions."""
    message = {"role": "assistant", "content": generation.reply}
    read, said = generation.input_tokens, generation.output_tokens
    usage = {}
    if read is not None and said is not None:
        usage = {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
    return {
        "id": f"chatcmpl-{generation.span_id}",
        "object": "chat.completion",
        "created": generation.end_ns // 1_000_000_000,
        "model": trace.sampling.model,
        "choices": [{"index": 0, "message": message, "finish_reason": generation.stop}],
        **({"usage": usage} if usage else {}),
    }


def _tags(trace: Trace, generation: Generation, run: RunInfo) -> dict[str, Tag]:
    episode, turn = trace.episode, trace.episode.turns[generation.turn]
    tags: dict[str, Tag | None] = {
        "report_id": generation.span_id,
        "run_id": trace.run_id,
        "run": run.name,
        "project": run.project,
        "env_id": episode.env_id,
        "task_id": episode.task_id,
        "episode_id": trace.episode_id,
        "step": trace.step,
        "turn": generation.turn,
        "reward": turn.reward,
        "episode_reward": episode.reward,
        "success": episode.success,
        "ending": episode.ending.value,
        "valid": turn.error is None,
        **{f"tag.{tag}": True for tag in run.tags},
    }
    return {name: value for name, value in tags.items() if value is not None and _is_json(value)}


def _is_json(tag: Tag) -> bool:
    return not isinstance(tag, float) or math.isfinite(tag)


def _word(tag: Tag) -> str:
    return str(tag).lower() if isinstance(tag, bool) else str(tag)
