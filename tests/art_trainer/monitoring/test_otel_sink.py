"""OpenTelemetry's sink against a receiver that decodes what arrives."""

import json
import logging
import math
import sys
import traceback

import pytest

from art_trainer.monitoring.events import SinkError, SinkUnavailableError
from art_trainer.monitoring.otel_sink import OpenTelemetrySink
from tests.art_trainer.monitoring.trace_receivers import (
    Answer,
    assert_given_up_in_time,
    assert_metrics_pass_unseen,
    invalid,
    opening,
    played,
    receiving,
    run_info,
    solved,
    spans_in,
)

KEY = "s3cr3t-value+of/a=key"


def good(number, request):
    return Answer(200, "{}")


def broken_once(answer):
    return lambda number, request: answer if number == 0 else good(number, request)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("ENDPOINT", "HEADERS", "TIMEOUT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_TRACES_{name}", raising=False)


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.DEBUG)
    yield caplog
    # caplog's own list is that of the teardown by now.
    assert [record for record in caplog.get_records("call") if record.name.startswith("opentelemetry")] == []


@pytest.fixture
def opened(tmp_path):
    with opening(tmp_path) as opens:

        def open_one(given, resume=None, **options):
            if isinstance(given, str):
                given = OpenTelemetrySink(f"{given}/v1/traces", **{"timeout": 30} | options)
            return opens(given, resume)

        yield open_one


def received(server):
    return spans_in(server.taken, "/v1/traces")


def test_an_episode_is_an_agent_that_chats_and_executes_tools(opened, quiet):
    with receiving(good) as server:
        opened(server.url).deliver(played())
    spans = received(server)
    assert [span.name for span in spans] == [
        "invoke_agent art/Email-v0",
        "chat art-tiny",
        "execute_tool search",
        "chat art-tiny",
        "execute_tool answer",
        "invoke_agent art/Email-v0",
        "chat art-tiny",
        "execute_tool invalid_reply",
        "invoke_agent art/Email-v0",
    ]
    for span in spans:
        assert span.name.startswith(span.attributes["gen_ai.operation.name"])
        assert span.attributes["gen_ai.provider.name"] == "art-gym"
        assert span.resource["service.name"] == "art-gym"
        assert span.resource["art.run.tags"] == ["ART", "GRPO"]
    assert [span.kind for span in spans[:3]] == [1, 3, 1]  # internal, client, internal
    agent, *children = spans[:5]
    assert agent.parent_id == ""
    assert {child.parent_id for child in children} == {agent.span_id}
    assert len({span.attributes["gen_ai.conversation.id"] for span in spans}) == 3


def test_what_arrives_is_what_was_played(opened, quiet):
    with receiving(good) as server:
        opened(server.url).deliver(played())
    agent, chat, tool, *_, fault, failed = received(server)
    episode = solved()
    assert agent.json("gen_ai.input.messages") == [
        {"role": "user", "parts": [{"type": "text", "content": episode.observation}]}
    ]
    assert agent.json("gen_ai.tool.definitions") == list(episode.tools)
    assert agent.attributes["art.reward"] == episode.reward
    assert agent.attributes["art.success"] is True
    assert agent.attributes["art.metric.searches"] == 1.0
    assert agent.attributes["gen_ai.usage.output_tokens"] == 7

    assert chat.attributes["gen_ai.request.model"] == "art-tiny"
    assert chat.attributes["gen_ai.request.temperature"] == 0.7
    assert chat.attributes["gen_ai.request.max_tokens"] == 4
    assert chat.attributes["gen_ai.usage.input_tokens"] == 5
    assert chat.attributes["gen_ai.usage.output_tokens"] == 3
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    (said,) = chat.json("gen_ai.output.messages")
    assert said["parts"][0]["content"] == episode.turns[0].reply
    assert said["finish_reason"] == "stop"
    assert chat.end - chat.start == 500_000_000

    assert tool.attributes["gen_ai.tool.name"] == "search"
    assert tool.json("gen_ai.tool.call.arguments") == {"query": "bücher"}
    assert tool.attributes["gen_ai.tool.call.result"] == "Nothing found. ☃"
    assert tool.attributes["art.reward"] == -0.1
    assert tool.attributes["art.term.cost"] == -0.1
    assert tool.attributes["art.execution_seconds"] == 0.125
    assert (fault.error, fault.attributes["error.type"]) == ("no call was found", "invalid_reply")
    assert (failed.error, failed.attributes["error.type"]) == ("KeyError: 'inbox'", "env_error")


def test_scores_are_evaluations_of_the_agent(opened, quiet):
    with receiving(good) as server:
        opened(server.url).deliver(played())
    agents = [span for span in received(server) if not span.parent_id]
    assert {name for agent in agents for name, _ in agent.events} == {"gen_ai.evaluation.result"}
    found = {
        about["gen_ai.evaluation.name"]: about["gen_ai.evaluation.score.value"]
        for _, about in agents[1].events
    }
    assert found == {"reward": invalid().reward, "success": 0.0, "term.invalid": -0.5}
    (judged,) = [a for _, a in agents[0].events if a["gen_ai.evaluation.name"] == "judge.clarity"]
    assert judged["gen_ai.evaluation.explanation"] == "short and clear"
    assert math.isclose(judged["gen_ai.evaluation.score.value"], 0.75)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, "out of order"),
        Answer(400, "what?"),
        Answer(304),
        Answer(200, "<html>please log in</html>", "text/html"),
        Answer(200, b"\xff\xff garbage", "application/x-protobuf"),
    ],
    ids=["500", "400", "304", "login page", "garbage"],
)
def test_a_failure_is_raised_and_the_event_arrives_once_later(opened, quiet, answer):
    with receiving(broken_once(answer)) as server:
        sink = opened(server.url)
        with pytest.raises(SinkError):
            sink.deliver(played())
        state = json.loads(json.dumps(sink.state()))
        opened(server.url, state).deliver(played())  # in another process
    spans = received(server)
    ids = {(span.trace_id, span.span_id) for span in spans}
    assert len(ids) == 9
    assert len(spans) == (9 if answer.status != 200 else 18)


def test_a_busy_server_is_asked_again_within_the_time(opened, quiet):
    with receiving(broken_once(Answer(503))) as server:
        opened(server.url).deliver(played())
    assert len(server.requests) == 2
    assert len(received(server)) == 9


def test_a_dead_and_a_slow_server_are_given_up_in_time(opened, quiet):
    assert "refused" in str(assert_given_up_in_time(lambda url: opened(url, timeout=0.3)))


def test_a_refused_key_is_said_without_the_key(opened, quiet):
    with receiving(lambda number, request: Answer(401, f"no such key: {KEY} Bearer {KEY}")) as server:
        sink = opened(server.url, headers={"authorization": KEY})
        with pytest.raises(SinkUnavailableError, match=r"HTTP 401.: no such key") as caught:
            sink.deliver(played())
    words = "".join(traceback.format_exception(caught.value)) + f"{sink!r}{sink.state()}{quiet.text}"
    assert KEY not in words


def test_rejected_spans_are_counted_and_not_sent_again(opened, quiet):
    partial = b"\x0a\x02\x08\x07"  # partial_success { rejected_spans: 7 }
    with receiving(lambda number, request: Answer(200, partial, "application/x-protobuf")) as server:
        sink = opened(server.url)
        sink.deliver(played())
    assert sink.state()["rejected"] == 7
    assert opened(server.url, sink.state()).state()["rejected"] == 7


def test_address_and_headers_come_from_the_usual_variables(opened, monkeypatch):
    with receiving(good) as server:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{server.url}/",
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={KEY.replace('=', '%3D')}, x-team = red",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
        }
        opened(OpenTelemetrySink.from_settings(settings)).deliver(played())
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{server.url}/own/path")
        opened(OpenTelemetrySink.from_settings(settings)).deliver(played())
        opened(OpenTelemetrySink()).deliver(played())
    assert [request.path for request in server.taken] == ["/v1/traces", "/own/path", "/own/path"]
    assert (server.taken[0].headers["api-key"], server.taken[0].headers["x-team"]) == (KEY, "red")
    with pytest.raises(SinkUnavailableError, match="a number of seconds, got 'soon'"):
        OpenTelemetrySink.from_settings({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"})


def test_other_events_pass_unseen(opened):
    with receiving(good) as server:
        assert_metrics_pass_unseen(server, opened(server.url))
    with pytest.raises(SinkError, match="was not opened"):
        OpenTelemetrySink().deliver(played())


def test_a_missing_package_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "art_trainer.monitoring.genai_spans", None)
    with pytest.raises(SinkUnavailableError, match=r'pip install "art-gym\[otel\]"'):
        OpenTelemetrySink().open(run_info(tmp_path), resume=None)
