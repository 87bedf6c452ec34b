"""Langfuse's sink against a receiver of its two endpoints, and what arrives there against the episodes."""

import base64
import json
import logging
import sys
import threading
import traceback

import pytest

from art_trainer.monitoring.delivery import Delivery, DeliveryLimits
from art_trainer.monitoring.events import CheckpointSaved, SinkError, SinkUnavailableError, StepDone
from art_trainer.monitoring.langfuse_sink import LangfuseSink
from art_trainer.monitoring.source import cursor_of
from tests.art_trainer.monitoring.trace_receivers import (
    PUBLIC,
    SCORES,
    SECRET,
    TRACES,
    Answer,
    nobody_there,
    opening,
    played,
    raised,
    receiving,
    run_info,
    scores_in,
    solved,
    spans_in,
)

IDENTITY = {"run_id": "mail-1-abcd", "started_ns": 1_700_000_000_000_000_000}
TAKEN = Answer(202, '{"message": "Accepted"}')


def good(number, request):
    return TAKEN if request.path == SCORES else Answer(200, "{}")


@pytest.fixture
def opened(tmp_path):
    with opening(tmp_path) as opens:
        yield lambda url, resume=None, timeout=30, public=PUBLIC: opens(
            LangfuseSink(public, SECRET, url, timeout=timeout), resume
        )


@pytest.fixture
def quiet(caplog):
    """The senders log nothing: a failure is told by who catches it. And nobody logs a secret."""
    caplog.set_level(logging.DEBUG)
    yield caplog
    records = caplog.get_records("call")  # caplog's own list is that of the teardown by now
    assert [one for one in records if one.name.startswith(("opentelemetry", "langfuse"))] == []
    assert_no_secret(" ".join(record.getMessage() for record in records))


def assert_no_secret(words):
    pair = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
    assert not [secret for secret in (PUBLIC, SECRET, pair) if secret in words]


def test_an_episode_is_an_agent_over_generations_and_tools(opened, quiet):
    with receiving(good) as server:
        sink = opened(server.url)
        sink.deliver(played())
    spans = spans_in(server.taken)
    kinds = [span.attributes["langfuse.observation.type"] for span in spans]
    assert kinds == [
        "agent",
        "generation",
        "tool",
        "generation",
        "tool",
        "agent",
        "generation",
        "tool",
        "agent",
    ]
    agents = [span for span in spans if span.attributes["langfuse.observation.type"] == "agent"]
    assert [agent.parent_id for agent in agents] == ["", "", ""]
    assert len({agent.trace_id for agent in agents}) == 3
    for span in spans:
        if span not in agents:
            (parent,) = [agent for agent in agents if agent.trace_id == span.trace_id]
            assert span.parent_id == parent.span_id
    (session,) = {span.attributes["session.id"] for span in spans}
    assert session == sink.state()["run_id"]
    assert {tuple(span.attributes["langfuse.trace.tags"]) for span in spans} == {("ART", "GRPO", "art-gym")}
    headers = server.taken[0].headers
    pair = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
    assert headers["authorization"] == f"Basic {pair}"
    assert headers["x-langfuse-public-key"] == PUBLIC


def test_what_arrives_is_what_was_played(opened, quiet):
    with receiving(good) as server:
        opened(server.url).deliver(played())
    agent, reply, search, _, answer, *_, fault, failed = spans_in(server.taken)
    episode = solved()
    about = "langfuse.observation."
    assert agent.attributes[f"{about}input"] == episode.observation
    assert agent.json(f"{about}output") == {
        "last_reply": episode.turns[-1].reply,
        "ending": "terminated",
        "success": True,
        "reward": episode.reward,
    }
    assert agent.json(f"{about}metadata.task_id") == "task-7"
    assert agent.json(f"{about}metadata.step") == 3
    assert agent.json(f"{about}metadata.metrics") == {"searches": 1.0}
    assert agent.start == 1_800_000_000_250_000_000

    assert reply.attributes[f"{about}model.name"] == "art-tiny"
    assert reply.json(f"{about}model.parameters") == {"temperature": 0.7, "max_tokens": 4}
    assert reply.json(f"{about}usage_details") == {"input": 5, "output": 3}
    assert reply.json(f"{about}input") == [{"role": "user", "content": episode.observation}]
    assert reply.json(f"{about}output") == {"role": "assistant", "content": episode.turns[0].reply}
    assert reply.end - reply.start == 500_000_000
    assert reply.json(f"{about}metadata.latency_seconds") == 0.5

    assert search.name == "search"
    assert search.json(f"{about}input") == {"query": "bücher"}
    assert search.attributes[f"{about}output"] == "Nothing found. ☃"
    assert search.json(f"{about}metadata.reward") == -0.1
    assert search.json(f"{about}metadata.execution_seconds") == 0.125
    assert search.end - search.start == 125_000_000
    assert f"{about}metadata.execution_seconds" not in answer.attributes

    assert (fault.attributes[f"{about}level"], fault.error) == ("ERROR", "no call was found")
    assert fault.attributes[f"{about}output"] == "No call was found. ?"
    assert (failed.attributes[f"{about}status_message"], failed.error) == ("KeyError: 'inbox'",) * 2


def test_scores_arrive_for_the_traces(opened, quiet):
    with receiving(good) as server:
        opened(server.url).deliver(played())
    traces = [s.trace_id for s in spans_in(server.taken) if not s.parent_id]
    scores = scores_in(server.taken)
    first = {score["name"]: score for score in scores if score["traceId"] == traces[0]}
    assert first["reward"]["value"] == solved().reward
    assert (first["success"]["value"], first["success"]["dataType"]) == (1, "BOOLEAN")
    assert first["judge.clarity"]["comment"] == "short and clear"
    assert set(first) >= {"term.cost", "term.correct", "independent_reward"}
    assert {score["name"] for score in scores if score["traceId"] == traces[2]} == {"reward"}
    assert len({score["id"] for score in scores}) == len(scores)


def test_only_episodes_are_sent(opened, tmp_path):
    with receiving(good) as server:
        sink = opened(server.url)
        sink.deliver(StepDone(1, {"loss": 1.0}))
        sink.deliver(CheckpointSaved(1, tmp_path, ("latest",)))
        sink.flush()
    assert server.requests == []


def broken_once(answer, at):
    """Fails the request of that number, and is a good server otherwise."""
    return lambda number, request: answer if number == at else good(number, request)


def arrived(server):
    """What Langfuse tells one thing from another by, and what it would show of it."""
    spans = {(span.trace_id, span.span_id): (span.start, span.name) for span in spans_in(server.taken)}
    scores = {(score["id"], score["timestamp"]): score["value"] for score in scores_in(server.taken)}
    return spans, scores


@pytest.fixture(scope="module")
def faultless(tmp_path_factory):
    """What arrives at a server without faults."""
    with receiving(good) as server:
        sink = LangfuseSink(PUBLIC, SECRET, server.url)
        sink.open(run_info(tmp_path_factory.mktemp("run")), resume=IDENTITY)
        sink.deliver(played())
        sink.close("finished")
    assert len(spans_in(server.taken)) == len(arrived(server)[0])
    assert len(scores_in(server.taken)) == len(arrived(server)[1])
    return arrived(server)


@pytest.mark.parametrize("at", [0, 1], ids=["spans", "scores"])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, "out of order"),
        Answer(400, '{"message": "no"}'),
        Answer(404, "<html>"),
        Answer(200, "<html>please log in</html>", "text/html"),
        Answer(200, "{", "application/json"),
        Answer(200, b"\xff\xfe\x00garbage", "application/x-protobuf"),
        Answer(200, "[1]"),
    ],
    ids=["500", "400", "404", "login page", "cut json", "bytes", "other json"],
)
def test_a_failure_is_raised_and_the_event_arrives_once_later(opened, quiet, faultless, answer, at):
    with receiving(broken_once(answer, at)) as server:
        sink = opened(server.url, IDENTITY)
        with pytest.raises(SinkError):
            sink.deliver(played())
        state = json.loads(json.dumps(sink.state()))
        opened(server.url, state).deliver(played())  # as in another process
    assert arrived(server) == faultless


@pytest.mark.parametrize("at", [0, 1], ids=["spans", "scores"])
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_said_without_the_key(opened, quiet, status, at):
    echo = Answer(status, json.dumps({"message": f"Invalid credentials {PUBLIC} {SECRET}"}))
    with receiving(broken_once(echo, at)) as server:
        sink = opened(server.url)
        with pytest.raises(
            SinkUnavailableError, match=f"refused the key .HTTP {status}.: .*Invalid"
        ) as caught:
            sink.deliver(played())
    assert_no_secret("".join(traceback.format_exception(caught.value)))
    assert_no_secret(f"{sink!r} {sink.state()} {caught.value!r}")


def test_a_dead_server_is_given_up_in_time(opened, quiet):
    with nobody_there() as address:
        sink = opened(address, timeout=0.3)
        fault = raised(lambda: sink.deliver(played()))
    assert isinstance(fault, SinkError)
    assert not isinstance(fault, SinkUnavailableError)
    assert_no_secret("".join(traceback.format_exception(fault)))


@pytest.mark.parametrize("path", [TRACES, SCORES])
def test_a_slow_server_is_given_up_in_time(opened, quiet, path):
    def answer(number, request):
        return server.hang(number, request) if request.path == path else good(number, request)

    with receiving(answer) as server:
        sink = opened(server.url, timeout=0.3)
        assert isinstance(raised(lambda: sink.deliver(played())), SinkError)


def test_what_the_server_refuses_of_a_taken_request_is_counted_and_not_sent_again(opened, quiet):
    errors = [{"message": f"bad value {SECRET}"}]
    some = json.dumps({"accepted": 9, "rejected": 2, "errors": errors})

    def answer(number, request):
        if request.path == SCORES:
            return Answer(207, some)
        return Answer(200, '{"partialSuccess": {"rejectedSpans": "3"}}')

    with receiving(answer) as server:
        sink = opened(server.url)
        sink.deliver(played())
        assert sink.state()["rejected"] == 5
        assert sink.state()["rejected_why"] == "bad value ***"
        assert opened(server.url, sink.state()).state() == sink.state()
    assert len(server.requests) == 2


def test_what_a_broken_server_missed_is_counted_and_comes_later_once(tmp_path, quiet):
    events = [played(step, timed=False) for step in (1, 2, 3)]
    run = run_info(tmp_path)
    healthy, said = threading.Event(), []

    def answer(number, request):
        broken = number > 1 and not healthy.is_set()  # the first step's two requests are taken
        return Answer(500, f"broken by {SECRET}") if broken else good(number, request)

    def deliver(url, resume):
        sink = LangfuseSink(PUBLIC, SECRET, url)
        delivery = Delivery(
            sink,
            run,
            say=said.append,
            limits=DeliveryLimits(first_pause=0.01, longest_pause=0.02),
            read=lambda folder, cursor: [event for event in events if cursor_of(event) > cursor],
        )
        delivery.start(resume=resume)
        for event in events if not resume else ():
            delivery.offer(event)
        delivery.end("finished")
        status = delivery.join(60)
        sink.close("interrupted")  # a sink that was given up has not been closed
        return status

    with receiving(answer) as server:
        status = deliver(server.url, resume=False)
        assert (status.complete, status.delivered) == (False, 1)
        assert status.failures >= 1
        healthy.set()
        later = deliver(server.url, resume=True)
    assert (later.complete, later.delivered, later.failures) == (True, 2, 0)
    spans, scores = spans_in(server.taken), scores_in(server.taken)
    assert len({(span.trace_id, span.span_id) for span in spans}) == len(spans) == 3 * 9
    assert len({score["id"] for score in scores}) == len(scores)
    assert len({span.attributes["session.id"] for span in spans}) == 1
    assert_no_secret(f"{said} {status} {later} {(tmp_path / 'sinks' / 'langfuse.json').read_text()}")


def test_requests_are_of_bounded_size(opened, quiet):
    many = played().episodes[:1] * 130
    event = played(timed=False).__class__(1, many)
    with receiving(good) as server:
        opened(server.url).deliver(event)
    batches = [len(spans_in([request])) for request in server.taken if request.path == TRACES]
    assert sum(batches) == 130 * 5
    assert max(batches) <= 512
    sizes = [len(json.loads(r.body)) for r in server.taken if r.path == SCORES]
    assert (sum(sizes), max(sizes)) == (130 * 7, 500)


def test_settings_have_the_usual_names(tmp_path):
    sink = LangfuseSink.from_settings({"LANGFUSE_PUBLIC_KEY": PUBLIC, "LANGFUSE_SECRET_KEY": SECRET})
    sink.open(run_info(tmp_path), resume=None)
    assert sink.state()["destination"].startswith("https://cloud.langfuse.com project ")
    sink.close("finished")
    with pytest.raises(SinkUnavailableError, match="needs LANGFUSE_SECRET_KEY"):
        LangfuseSink.from_settings({"LANGFUSE_PUBLIC_KEY": PUBLIC})
    with pytest.raises(SinkUnavailableError, match="LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"):
        LangfuseSink.from_settings({})


def test_another_project_is_another_destination(opened):
    def destination(public):
        return opened("http://user:pass-word@host", public=public).state()["destination"]

    assert destination(PUBLIC) == destination(PUBLIC) != destination(PUBLIC[:-1])
    assert "pass-word" not in destination(PUBLIC)


def test_the_passwords_file_does_not_replace_the_keys(opened, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with receiving(good) as server:
        opened(server.url).deliver(played())
    pair = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
    assert {request.headers["authorization"] for request in server.taken} == {f"Basic {pair}"}


def test_a_sink_that_was_not_opened_says_so():
    with pytest.raises(SinkError, match="was not opened"):
        LangfuseSink(PUBLIC, SECRET).deliver(played())


def test_a_missing_package_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "langfuse", None)
    with pytest.raises(SinkUnavailableError, match=r'pip install "art-gym\[langfuse\]"'):
        LangfuseSink(PUBLIC, SECRET).open(run_info(tmp_path), resume=None)
