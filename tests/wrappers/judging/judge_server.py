"""A judge model on loopback: speaks OpenAI's chat protocol over real HTTP, well or badly as a test wants."""

import json
import re
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from art_gym.wrappers.judging import Attempt, Judge, JudgeFailedError, Rubric, Step, judge_group
from art_gym.wrappers.judging.llm_judge import LLMJudge

Request = dict[str, Any]


@dataclass
class Reply:
    """What the server sends: a body of JSON or bytes, and what goes wrong on the way."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    drop_after: int | None = None
    """Close the connection after so many bytes of the body."""
    stall: bool = False
    """Fall silent there instead."""
    drip: float | None = None
    """Send a blank every so many seconds in place of the body, without end."""


class JudgeServer:
    """Answers request number n with ``answer(n, request)``."""

    def __init__(self, answer: Callable[[int, Request], Reply]) -> None:
        self.requests: list[Request] = []
        self.paths: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.faults: list[Exception] = []
        self.busy = self.most_busy = self.dropped = 0
        self._lock, self._free = threading.Lock(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
                with server._lock:
                    number = len(server.requests)
                    server.requests.append(request)
                    server.paths.append(self.path)
                    server.headers.append(dict(self.headers))
                    server.busy += 1
                    server.most_busy = max(server.most_busy, server.busy)
                try:
                    try:
                        found = answer(number, request)
                    finally:
                        with server._lock:
                            server.busy -= 1  # before its client can ask again
                    self.reply(found)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client had its timeout
                except Exception as fault:
                    server.faults.append(fault)  # of the test itself; its client sees a drop

            do_GET = do_POST

            def reply(self, reply: Reply) -> None:
                while reply.hang and not server._free.wait(0.02):
                    readable, _, _ = select.select([self.connection], [], [], 0)
                    if readable and self.connection.recv(1, socket.MSG_PEEK) == b"":
                        server.dropped += 1  # the client has given up
                        return
                data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                if reply.drip is None:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                while reply.drip is not None and not server._free.wait(reply.drip):
                    self.wfile.write(b" ")
                self.wfile.write(data[: reply.drop_after])
                if reply.stall:
                    server._free.wait(300)
                if reply.drop_after is not None:
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._free.set()
        self._http.shutdown()
        self._http.server_close()
        assert self.faults == []


def completion(
    content: str | None, *, usage: tuple[int, int] | None = (100, 20), finish: str = "stop"
) -> Request:
    """A chat completion with these words."""
    message = {"role": "assistant", "content": content}
    body: Request = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return body


def says(content: str | None, **options: Any) -> Reply:
    return Reply(completion(content, **options))


_ATTEMPT = re.compile(
    r"^\[(\S+) begin attempt (\S+)\]\n(.*?)\n\[\1 end attempt \2\]$", re.DOTALL | re.MULTILINE
)


def shown(request: Request) -> dict[str, str]:
    """The attempts in a question, by label, in the order shown."""
    return {label: text for _, label, text in _ATTEMPT.findall(request["messages"][1]["content"])}


def answer_json(scores: Mapping[str, Any], **more: Any) -> str:
    entries = [
        {"id": label, "explanation": f"{label} did so.", "score": s} | more for label, s in scores.items()
    ]
    return json.dumps({"scores": entries})


def attempt(id_: str, quality: float, words: str = "", *, steps: int = 1, **options: Any) -> Attempt:
    """An attempt that says how good it is."""
    made = [Step(f"act({number}) {words}", "done") for number in range(steps - 1)]
    made.append(Step(f"stop() {words} quality={quality}", "the end"))
    return Attempt(id_, "Find the mail.", tuple(made), **options)


def marker(text: str) -> float:
    """How good an attempt is, as it says of itself: the last ``quality=…`` in it."""
    return float(re.findall(r"quality=([\d.]+)", text)[-1])


def by_content(number: int, request: Request) -> Reply:
    """A judge that scores by content alone."""
    return says(good(request))


def likes_short_attempts(number: int, request: Request) -> Reply:
    return says(answer_json({label: 100 / (100 + len(text)) for label, text in shown(request).items()}))


GROUP = [attempt("a", 0.3), attempt("b", 0.9), attempt("c", 0.5)]
VALUES = {"a": 0.3, "b": 0.9, "c": 0.5}
ERROR = {"error": {"message": "no such luck"}}
Answer = Callable[[int, Request], Reply]


class Bench:
    """Servers and judges of one test; pauses are noted and not slept."""

    def __init__(self) -> None:
        self.servers: list[JudgeServer] = []
        self.judges: list[LLMJudge] = []
        self.pauses: list[float] = []

    def judge(self, answer: Answer = by_content, **options: Any) -> LLMJudge:
        self.servers.append(JudgeServer(answer))
        self.judges.append(LLMJudge("m", self.server.url, **options))
        return self.judges[-1]

    @property
    def server(self) -> JudgeServer:
        return self.servers[-1]

    @property
    def requests(self) -> list[Request]:
        return self.server.requests

    def close(self) -> None:
        for made in (*self.judges, *self.servers):
            made.close()


def values(judge: Judge, group: list[Attempt] = GROUP, rubric: Rubric | None = None) -> dict[str, float]:
    return {id_: score.value for id_, score in judge_group(judge, group, rubric).items()}


def failure(judge: LLMJudge, group: list[Attempt] = GROUP) -> JudgeFailedError:
    """How a judge fails; the failure is counted once."""
    with pytest.raises(JudgeFailedError) as caught:
        judge(group)
    assert judge.statistics.failures == {caught.value.reason: 1}
    return caught.value


def good(request: Request) -> str:
    return answer_json({label: marker(text) for label, text in shown(request).items()})


def edited(edit: Callable[[list[dict[str, Any]]], Any]) -> Answer:
    """Answers right, but for one change to the list of scores."""

    def answer(number: int, request: Request) -> Reply:
        content = json.loads(good(request))
        edit(content["scores"])
        return says(json.dumps(content))

    return answer


def first_then_good(bad: Answer) -> Answer:
    return lambda number, request: bad(number, request) if number == 0 else by_content(number, request)
