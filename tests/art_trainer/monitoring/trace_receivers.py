"""A server on loopback that keeps what it is sent, and episodes to send it."""

import gzip
import json
import socket
import threading
from collections import namedtuple
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from art_trainer.episodes import Ending, Episode, Judgement, Span, TokenHistory, Turn
from art_trainer.monitoring.events import EpisodesPlayed, RunInfo, SinkError, SinkUnavailableError, StepDone
from art_trainer.timings import EpisodeTiming, TurnTiming

Request = namedtuple("Request", "path headers body")
Answer = namedtuple("Answer", "status body kind", defaults=["", "application/json"])

TRACES = "/api/public/otel/v1/traces"
SCORES = "/api/public/scores"
PUBLIC, SECRET = "pk-lf-0123456789abcdef", "sk-lf-fedcba9876543210"
TOOLS = (
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}},
)


class Receiver:
    """Answers every request with ``answer(number, request)``; taken are those answered below 300."""

    def __init__(self, answer):
        self.requests, self.taken, self.answer = [], [], answer
        self.lock, self.released = threading.Lock(), threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, body)
                with receiver.lock:
                    number = len(receiver.requests)
                    receiver.requests.append(request)
                answer = receiver.answer(number, request)
                if answer.status < 300:
                    receiver.taken.append(request)
                data = answer.body if isinstance(answer.body, bytes) else answer.body.encode()
                try:
                    self.send_response(answer.status)
                    self.send_header("Content-Type", answer.kind)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client had its timeout

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def hang(self, number, request):
        """An answer that comes too late."""
        self.released.wait(60)
        return Answer(200, "{}")

    def close(self):
        self.released.set()
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def receiving(answer):
    receiver = Receiver(answer)
    try:
        yield receiver
    finally:
        receiver.close()


def spans_in(requests, path=TRACES):
    """Every span of these requests with its resource, in order."""
    found = []
    for request in requests:
        if request.path == path:
            message = ExportTraceServiceRequest.FromString(request.body)
            for resource in message.resource_spans:
                about = attributes(resource.resource.attributes)
                found += [SpanRead(span, about) for scope in resource.scope_spans for span in scope.spans]
    return found


class SpanRead:
    def __init__(self, span, resource):
        self.name, self.resource, self.kind = span.name, resource, span.kind
        self.trace_id, self.span_id = span.trace_id.hex(), span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = attributes(span.attributes)
        self.error = span.status.message if span.status.code == 2 else None
        self.events = [(event.name, attributes(event.attributes)) for event in span.events]

    def json(self, name):
        return json.loads(self.attributes[name])


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind)


def scores_in(requests):
    """Every score of these requests, in order."""
    return [score for request in requests if request.path == SCORES for score in json.loads(request.body)]


def run_info(folder, **changes):
    return RunInfo(
        **{
            "name": "mail-1",
            "project": "art-gym",
            "folder": folder,
            "env_id": "art/Email-v0",
            "model": "art-tiny",
            "config": {"temperature": 0.7, "max_completion_length": 4, "seed": 3},
            "tags": ("ART", "GRPO"),
        }
        | changes
    )


@contextmanager
def opening(folder):
    """Opens sinks for a run, and closes them in the end."""
    sinks = []

    def open_one(sink, resume=None, **changes):
        sinks.append(sink)
        sink.open(run_info(folder, **changes), resume=resume)
        return sink

    yield open_one
    for sink in sinks:
        sink.close("finished")


@contextmanager
def nobody_there():
    """An address that is bound, so nobody else's, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def assert_given_up_in_time(open_quickly):
    """A server that is dead, and one that would answer after a minute, are given up by an impatient sink.

    Takes what opens a sink for an address; gives the fault of the dead one.
    """
    with nobody_there() as address:
        dead = raised(lambda: open_quickly(address).deliver(played()))
    assert isinstance(dead, SinkError)
    assert not isinstance(dead, SinkUnavailableError)
    with receiving(lambda number, request: server.hang(number, request)) as server:
        assert isinstance(raised(lambda: open_quickly(server.url).deliver(played())), SinkError)
    return dead


def assert_metrics_pass_unseen(server, sink):
    """A sink of episodes sends nothing of a step's metrics."""
    sink.deliver(StepDone(1, {"loss": 1.0}))
    sink.flush()
    assert server.requests == []


def solved():
    """Two calls, judged and measured, with the tokens of both replies."""
    history = TokenHistory(
        (
            Span((1, 2, 3, 4, 5)),
            Span((6, 7, 8), 0, (-0.1, -0.2, -0.3), 11),
            Span((9, 10)),
            Span((11, 12, 13, 14), 1, (-0.1, -0.2, -0.3, -0.4), 11),
        )
    )
    turns = (
        Turn(
            'I look.\nsearch("bücher")',
            "Nothing found. ☃",
            -0.1,
            {"cost": -0.1},
            {"name": "search", "arguments": {"query": "bücher"}},
        ),
        Turn(
            'answer("5 €")',
            "Right.",
            1.0,
            {"correct": 1.0, "cost": 0.0},
            {"name": "answer", "arguments": {"text": "5 €"}},
        ),
    )
    return Episode(
        "art/Email-v0",
        "task-7",
        41,
        "What did the books cost?",
        turns,
        (history,),
        Ending.TERMINATED,
        success=True,
        metrics={"searches": 1.0},
        tools=TOOLS,
        judgements={"clarity": Judgement(0.75, "short and clear", {"tone": 0.5})},
        independent_reward=0.8,
    )


def invalid():
    """A reply without a call, then the end; no tokens. Half a surrogate pair is in what was seen."""
    fault = {"kind": "no_call", "message": "no call was found"}
    turns = (Turn("hello", "No call was found. \ud83d", -0.5, {"invalid": -0.5}, None, fault),)
    return Episode("art/Email-v0", "task-8", 42, "Find it.", turns, (), Ending.TRUNCATED, success=False)


def broken():
    """The environment raised at once."""
    return Episode("art/Email-v0", "task-9", 43, "", (), (), Ending.ENV_ERROR, error="KeyError: 'inbox'")


def played(step=3, timed=True):
    """A step's event: the three episodes, the first of them with its times."""
    timing = EpisodeTiming(1_800_000_000.25, (TurnTiming(0.5, 0.125), TurnTiming(0.25, None)))
    episodes = (solved(), invalid(), broken())
    return EpisodesPlayed(step, episodes, (timing, None, None) if timed else None)


def raised(call):
    """What a call raised, or returned."""
    try:
        return call()
    except Exception as fault:
        return fault
