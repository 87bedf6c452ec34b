"""OpenPipe's sink against a receiver of its reporting endpoint."""

import json
import logging
import threading
import time
import traceback

import pytest

from art_trainer.episodes import Ending, Episode, Turn
from art_trainer.monitoring.events import EpisodesPlayed, SinkError, SinkUnavailableError
from art_trainer.monitoring.openpipe_sink import OpenPipeSink
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
)

KEY = "opk_0123456789abcdef0123"
OK = Answer(200, '{"status": "ok"}')


def good(number, request):
    return OK


@pytest.fixture
def opened(tmp_path):
    with opening(tmp_path) as opens:
        yield lambda url, resume=None, timeout=30: opens(
            OpenPipeSink(KEY, f"{url}/api/v1", timeout=timeout), resume
        )


def reports(server):
    """What was taken, in the order of play: reports come side by side."""
    found = [json.loads(request.body) for request in server.taken]
    return sorted(found, key=lambda report: [report["tags"][key] for key in ("step", "episode_id", "turn")])


def test_a_reply_is_a_report_with_its_request(opened):
    with receiving(good) as server:
        opened(server.url).deliver(played())
    first, second, third = reports(server)
    episode = solved()
    assert {request.path for request in server.taken} == {"/api/v1/report"}
    assert server.taken[0].headers["authorization"] == f"Bearer {KEY}"
    assert first["reqPayload"]["messages"] == [{"role": "user", "content": episode.observation}]
    assert [message["role"] for message in second["reqPayload"]["messages"]] == ["user", "assistant", "user"]
    assert second["reqPayload"]["tools"] == list(episode.tools)
    assert (second["reqPayload"]["model"], second["reqPayload"]["temperature"]) == ("art-tiny", 0.7)
    assert second["reqPayload"]["max_completion_tokens"] == 4
    (choice,) = second["respPayload"]["choices"]
    assert choice["message"] == {"role": "assistant", "content": episode.turns[1].reply}
    assert choice["finish_reason"] == "length"
    assert second["respPayload"]["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
    }
    assert first["receivedAt"] - first["requestedAt"] == 500
    assert first["requestedAt"] == 1_800_000_000_250
    assert third["reqPayload"]["messages"] == [{"role": "user", "content": invalid().observation}]
    assert "usage" not in third["respPayload"]
    assert {report["statusCode"] for report in reports(server)} == {200}


def test_tags_have_the_reward_and_say_where_it_came_from(opened):
    with receiving(good) as server:
        sink = opened(server.url)
        sink.deliver(played())
    first, second, third = (report["tags"] for report in reports(server))
    assert (first["reward"], second["reward"]) == (-0.1, 1.0)
    assert first["episode_reward"] == second["episode_reward"] == solved().reward
    assert (second["success"], second["turn"], second["step"]) == (True, 1, 3)
    assert (second["task_id"], second["episode_id"]) == ("task-7", "000003-0000")
    assert (second["tag.GRPO"], second["run_id"]) == (True, sink.state()["run_id"])
    assert (third["valid"], third["ending"], third["success"]) == (False, "truncated", False)
    metadata = reports(server)[1]["reqPayload"]["metadata"]
    assert (metadata["reward"], metadata["success"], metadata["turn"]) == ("1.0", "true", "1")
    assert set(metadata) == set(second)
    assert all(isinstance(value, str) for value in metadata.values())


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, "out of order"),
        Answer(400, '{"message": "no"}'),
        Answer(301, ""),
        Answer(200, "<html>please log in</html>", "text/html"),
        Answer(200, '{"status": "queue'),
        Answer(200, "[]"),
    ],
    ids=["500", "400", "301", "login page", "cut json", "other json"],
)
@pytest.mark.parametrize("anew", [False, True], ids=["same process", "another process"])
def test_after_a_failure_the_rest_arrives_and_nothing_twice(opened, answer, anew):
    failed = []

    def unsure(number, request):
        if number != 1:
            return OK
        failed.append(json.loads(request.body)["tags"]["report_id"])
        return answer

    with receiving(unsure) as server:
        sink = opened(server.url)
        with pytest.raises(SinkError):
            sink.deliver(played())
        assert len(server.requests) == 3
        if anew:
            sink = opened(server.url, json.loads(json.dumps(sink.state())))
        sink.deliver(played())
        sink.deliver(played())
    assert len(server.requests) == 4
    assert json.loads(server.requests[-1].body)["tags"]["report_id"] == failed[0]
    assert len({report["tags"]["report_id"] for report in reports(server)}) == 3


def test_no_more_reports_are_under_way_than_there_are_connections(opened):
    under_way, most, lock = [], [], threading.Lock()
    together = threading.Event()

    def answer(number, request):
        with lock:
            under_way.append(number)
            most.append(len(under_way))
        if number:
            together.set()
        assert together.wait(60)
        time.sleep(0.02)
        with lock:
            under_way.remove(number)
        return OK

    with receiving(answer) as server:
        sink = opened(server.url)
        sink.deliver(EpisodesPlayed(1, (solved(),) * 10))
    assert len({report["tags"]["report_id"] for report in reports(server)}) == len(server.requests) == 20
    assert 1 < max(most) <= 8
    assert sink.state()["progress"] == [{"step": 1, "taken": 20, "beyond": [], "whole": True}]


def test_another_step_and_another_destination_begin_anew(opened):
    with receiving(good) as server, receiving(good) as other:
        sink = opened(server.url)
        sink.deliver(played(1))
        sink.deliver(played(2))
        opened(other.url, sink.state()).deliver(played(2))
    assert [report["tags"]["step"] for report in reports(server)] == [1, 1, 1, 2, 2, 2]
    assert len(reports(other)) == 3


def test_a_refused_key_is_said_without_the_key(opened, caplog):
    caplog.set_level(logging.DEBUG)
    with receiving(lambda number, request: Answer(401, f'{{"message": "bad key {KEY}"}}')) as server:
        sink = opened(server.url)
        with pytest.raises(SinkUnavailableError, match=r"HTTP 401.: .*bad key") as caught:
            sink.deliver(played())
    words = "".join(traceback.format_exception(caught.value))
    assert KEY not in words + f"{sink!r}{sink.state()}{caplog.text}"


def test_a_dead_and_a_slow_server_are_given_up_in_time(opened):
    assert_given_up_in_time(lambda url: opened(url, timeout=0.3))


def test_what_json_cannot_say_does_not_stop_the_report(opened):
    turn = Turn("say \ud83d", "ok", float("nan"))
    episode = Episode("e", "t", 0, "start \udc00", (turn,), (), Ending.TERMINATED)
    with receiving(good) as server:
        opened(server.url).deliver(EpisodesPlayed(1, (episode,)))
    (report,) = reports(server)
    assert {"reward", "episode_reward", "success"}.isdisjoint(report["tags"])
    assert report["reqPayload"]["messages"][0]["content"] == "start \udc00"


def test_settings_have_the_usual_names(tmp_path):
    sink = OpenPipeSink.from_settings({"OPENPIPE_API_KEY": KEY})
    sink.open(run_info(tmp_path), resume=None)
    sink.close("finished")
    assert sink.state()["destination"] == "https://api.openpipe.ai/api/v1"
    with pytest.raises(SinkUnavailableError, match="needs OPENPIPE_API_KEY"):
        OpenPipeSink.from_settings({})


def test_other_events_pass_unseen(opened):
    with receiving(good) as server:
        assert_metrics_pass_unseen(server, opened(server.url))
