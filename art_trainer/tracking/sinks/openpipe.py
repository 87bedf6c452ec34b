"""OpenPipe: every request and reply of the policy, with tags and reward.

The format is that of ``POST /report`` (https://docs.openpipe.ai/api-reference/post-report). OpenPipe's own
client, 5.0.0, is not used: it holds openai below 1.98, and its wrapper prints failures and drops what failed.

OpenPipe knows no ids by which it would recognise a second delivery. So this sink remembers which reports of
an unfinished step were taken and sends only the others. A report whose answer was lost may come twice, with
the same ``report_id``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from threading import Thread
from typing import Any

from art_trainer.tracking.datasets import string_values
from art_trainer.tracking.sinks.base import EventRefusedError, RunInfo, required
from art_trainer.tracking.sinks.http import HttpClient
from art_trainer.tracking.sinks.redaction import Redactor
from art_trainer.tracking.sinks.traces import Node, Trace, TraceSink

_CONNECTIONS = 8
"""Most reports under way at a time: an answer is slow, and a step has many reports."""
Tag = str | float | bool
Report = dict[str, Any]


class OpenPipeSink(TraceSink):
    """Reports replies to OpenPipe.

    Args:
        settings: ``OPENPIPE_API_KEY`` and ``OPENPIPE_BASE_URL``.

    Raises:
        SinkUnavailableError: If the key is missing.
    """

    name = "openpipe"

    def __init__(self, settings: Mapping[str, str]) -> None:
        (key,) = required(settings, self.name, "OPENPIPE_API_KEY")
        url = (settings.get("OPENPIPE_BASE_URL") or "https://api.openpipe.ai/api/v1").rstrip("/")
        redactor = Redactor([key])
        self.http = HttpClient(redactor, {"Authorization": f"Bearer {key}"}, timeout=5.0)
        self._url, self.destination = f"{url}/report", redactor(url)
        self._taken: dict[int, set[int]] = {}
        """Of each unfinished step, the numbers of the reports that were taken."""

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin or resume a run; nothing is sent yet."""
        super().open(run, resume=resume)
        if resume is not None and resume.get("destination") == self.destination:
            self._taken = {int(step): set(taken) for step, taken in resume.get("taken", {}).items()}

    def send(self, step: int, traces: Iterator[Trace]) -> None:
        """Report a step's replies, a few at a time.

        Raises:
            SinkUnavailableError: If the key was refused.
            EventRefusedError: If a report was refused; all others were sent.
            SinkError: If the server could not be reached or did not take a report.
        """
        taken = self._taken.setdefault(step, set())
        reports = enumerate(report for trace in traces for report in _reports(trace, self.run))
        waiting = (numbered for numbered in reports if numbered[0] not in taken)
        refused: EventRefusedError | None = None
        while batch := list(islice(waiting, _CONNECTIONS)):
            try:
                self._post_together(batch, taken)
            except EventRefusedError as fault:
                refused = fault
        if refused is not None:
            raise refused
        del self._taken[step]

    def state(self) -> dict[str, Any]:
        """The run's identity, and the reports taken of unfinished steps."""
        taken = {str(step): sorted(numbers) for step, numbers in self._taken.items() if numbers}
        return {**super().state(), "taken": taken}

    def _post_together(self, batch: Sequence[tuple[int, Report]], taken: set[int]) -> None:
        """Post reports side by side; raise one of the errors, a refusal only if there is no other."""
        faults: list[Exception] = []

        def post(number: int, report: Report) -> None:
            try:
                self._post(report)
                taken.add(number)
            except Exception as fault:
                faults.append(fault)

        # Daemon threads: the end of the program does not wait for a server.
        threads = [Thread(target=post, args=numbered, daemon=True) for numbered in batch]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise min(faults, key=lambda fault: isinstance(fault, EventRefusedError))

    def _post(self, report: Report) -> None:
        reply = self.http.post(self._url, json.dumps(report, default=str), "application/json")
        try:
            taken = reply.json()["status"] == "ok"
        except (ValueError, KeyError, TypeError):
            taken = False
        if not taken:
            raise self.http.unexpected(reply)


def _reports(trace: Trace, run: RunInfo) -> Iterator[Report]:
    """Yield a trace's replies as bodies of ``POST /report``, in order."""
    messages = []
    for node in trace.nodes[1:]:
        if node.kind == "tool":
            continue
        messages.append({"role": "user", "content": node.input})
        tags = _tags(trace, node, run)
        yield {
            "requestedAt": node.start_ns // 1_000_000,  # ms
            "receivedAt": node.end_ns // 1_000_000,
            "reqPayload": _request(trace, list(messages), tags),
            "respPayload": _completion(trace, node),
            "statusCode": 200,
            # Deprecated in favour of the request's metadata, which holds strings only; these can be numbers.
            "tags": tags,
        }
        messages.append({"role": "assistant", "content": node.output})


def _request(trace: Trace, messages: list[dict[str, str]], tags: Mapping[str, Tag]) -> dict[str, Any]:
    names = {"max_tokens": "max_completion_tokens"}
    return {
        "model": trace.model,
        "messages": messages,
        **{names.get(name, name): value for name, value in trace.sampling.items()},
        **({"tools": [dict(tool) for tool in trace.episode.tools]} if trace.episode.tools else {}),
        "metadata": string_values(tags),
    }


def _completion(trace: Trace, node: Node) -> dict[str, Any]:
    """Return a reply in the form of OpenAI's chat completions."""
    usage = {}
    if node.usage is not None:
        read, sampled = node.usage
        counts = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
        usage = {"usage": counts}
    message = {"role": "assistant", "content": node.output}
    return {
        "id": f"chatcmpl-{node.span_id}",
        "object": "chat.completion",
        "created": node.end_ns // 1_000_000_000,
        "model": trace.model,
        "choices": [{"index": 0, "message": message, "finish_reason": node.stop}],
        **usage,
    }


def _tags(trace: Trace, node: Node, run: RunInfo) -> dict[str, Tag]:
    facts, turn = trace.nodes[0].facts, trace.episode.turns[node.facts["turn"]]
    tags: dict[str, Tag | None] = {
        "report_id": node.span_id,
        "run_id": trace.run_id,
        "run": run.name,
        "project": run.project,
        "env_id": trace.episode.env_id,
        **{name: facts[name] for name in ("task_id", "episode_id", "step", "success", "ending")},
        "turn": node.facts["turn"],
        "reward": turn.reward,
        "episode_reward": facts["reward"],
        "valid": turn.error is None,
        **{f"tag.{tag}": True for tag in run.tags},
    }
    return {
        name: value
        for name, value in tags.items()
        if value is not None and (not isinstance(value, float) or math.isfinite(value))
    }
