"""Answers that cannot be used, servers that fail, and forms that they lack, over real HTTP on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from tests.wrappers.judge_server import (
    ERROR,
    GROUP,
    VALUES,
    Answer,
    Bench,
    Reply,
    Request,
    by_content,
    completion,
    edited,
    failure,
    first_then_good,
    good,
    says,
    values,
)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


# Answers that cannot be used


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (edited(lambda s: s.pop()), "there is no score for"),
        (edited(lambda s: s.append(s[0])), "is scored twice"),
        (edited(lambda s: s[0].update(id="1")), "no attempt has the id '1'"),
        (edited(lambda s: s[0].update(score=7.5)), "not 7.5"),
        (edited(lambda s: s[0].update(score=-1)), "not -1"),
        (edited(lambda s: s[0].update(score=float("nan"))), "not NaN"),
        (edited(lambda s: s[0].update(score=float("inf"))), "not Infinity"),
        (edited(lambda s: s[0].update(score="0.5")), "not '0.5'"),
        (edited(lambda s: s[0].update(score=True)), "not True"),
        (edited(lambda s: s.clear()), "there is no score for"),
        (lambda n, r: says("2, 1, 3"), 'no JSON object with the key "scores"'),
        (lambda n, r: says(good(r)[:-30]), 'no JSON object with the key "scores"'),
        (lambda n, r: says(good(r)[:-30], finish="length"), "be brief"),
        (lambda n, r: says(""), "it is empty"),
        (lambda n, r: says(None), "it is empty"),
    ],
)
def test_a_bad_answer_is_mended_or_fails(bench: Bench, bad: Answer, words: str) -> None:
    judge = bench.judge(first_then_good(bad))
    assert values(judge) == VALUES
    first, second = bench.server.requests
    assert second["messages"][:2] == first["messages"]
    assert words in second["messages"][3]["content"]
    assert (judge.statistics.repairs, judge.statistics.failures) == (1, {})

    hopeless = bench.judge(bad, max_repairs=1)
    fault = failure(hopeless)
    assert fault.reason == "malformed"
    assert words in str(fault)
    assert len(bench.server.requests) == 2


def test_a_repair_shows_the_last_answer_alone(bench: Bench) -> None:
    bench_judge = bench.judge(lambda number, request: says(f"answer {number} " + "x" * 5_000), max_repairs=3)
    failure(bench_judge)
    assert [len(request["messages"]) for request in bench.server.requests] == [2, 4, 4, 4]
    last = bench.server.requests[-1]["messages"][2]["content"]
    assert last.startswith("answer 2")
    assert len(last) <= 2_000


@pytest.mark.parametrize("wrap", ["Well then.\n```json\n{}\n```\nSo it is.", "<think>{{}}</think>{}"])
def test_prose_around_the_answer_does_no_harm(bench: Bench, wrap: str) -> None:
    judge = bench.judge(lambda n, r: says(wrap.replace("{}", good(r)).replace("{{", "").replace("}}", "")))
    assert values(judge) == VALUES
    assert judge.statistics.repairs == 0


def test_a_refusal_is_a_failure_at_once(bench: Bench) -> None:
    body = completion(None)
    body["choices"][0]["message"]["refusal"] = "I cannot judge."
    fault = failure(bench.judge(lambda n, r: Reply(body)))
    assert fault.reason == "refused"
    assert "I cannot judge." in str(fault)
    assert len(bench.server.requests) == 1


# Faults on the way


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Reply(ERROR, 429), "rate_limited"),
        (Reply(ERROR, 500), "server_error"),
        (Reply(ERROR, 503), "server_error"),
        (Reply(b"<html>bad gateway</html>", 502), "server_error"),
        (Reply(completion("x" * 500), drop_after=200), "connection"),
        (Reply(completion("x"), drop_after=0), "connection"),
        (Reply(json.dumps(completion("é"), ensure_ascii=False).encode("latin-1")), "garbled"),
        (Reply(json.dumps(completion("x")).encode("utf-16")), "garbled"),
        (Reply(b"{cut"), "garbled"),
        (Reply(b"<html>welcome</html>", headers={"Content-Type": "text/html"}), "garbled"),
        (Reply({"choices": []}), "garbled"),
        (Reply(ERROR), "garbled"),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, Reply) else value,
)
def test_a_fault_that_passes_costs_a_retry_and_one_that_stays_fails(
    bench: Bench, fault: Reply, reason: str
) -> None:
    judge = bench.judge(first_then_good(lambda n, r: fault))
    assert values(judge) == VALUES
    assert (judge.statistics.requests, judge.statistics.retries) == (2, 1)
    assert 0.25 <= bench.pauses[0] <= 0.5

    stays = bench.judge(lambda n, r: fault, max_retries=2)
    found = failure(stays)
    assert found.reason == reason
    assert "asked 3 times" in str(found)
    assert len(bench.server.requests) == 3


def test_a_hang_runs_into_the_timeout(bench: Bench) -> None:
    judge = bench.judge(first_then_good(lambda n, r: Reply(hang=True)), timeout=0.2)
    assert values(judge) == VALUES
    stays = bench.judge(lambda n, r: Reply(hang=True), timeout=0.2, max_retries=1)
    fault = failure(stays)
    assert fault.reason == "timeout"
    assert "silent for 0.2 s" in str(fault)


def test_blanks_without_end_run_into_the_timeout(bench: Bench) -> None:
    fault = failure(bench.judge(lambda n, r: Reply({}, drip=0.02), timeout=0.3, max_retries=0))
    assert fault.reason == "timeout"
    assert "did not finish within 0.3 s" in str(fault)


def test_silence_in_the_midst_of_an_answer_runs_into_the_timeout(bench: Bench) -> None:
    reply = Reply(completion("x" * 500), drop_after=100, stall=True)
    fault = failure(bench.judge(lambda n, r: reply, timeout=0.5, max_retries=0))
    assert fault.reason == "timeout"
    assert "fell silent" in str(fault)


def test_nobody_there_is_a_failure_in_words(bench: Bench) -> None:
    judge = bench.judge(max_retries=0)
    bench.server.close()
    fault = failure(judge)
    assert fault.reason == "connection"
    assert "asked once" in str(fault)


def test_pauses_double_up_to_a_bound_and_are_spread(bench: Bench) -> None:
    failure(bench.judge(lambda n, r: Reply(ERROR, 500), max_retries=8))
    for number, pause in enumerate(bench.pauses):
        longest = min(0.5 * 2**number, 16)
        assert longest / 2 <= pause <= longest
    assert len(set(bench.pauses)) == 8


def test_a_server_is_left_alone_as_long_as_it_asks(bench: Bench) -> None:
    headers = [{"Retry-After": "7"}, {"Retry-After": formatdate(time.time() + 30, usegmt=True)}, {}]

    def answer(number: int, request: Request) -> Reply:
        return Reply(ERROR, 429, headers[number]) if number < 3 else by_content(number, request)

    judge = bench.judge(answer)
    assert values(judge) == VALUES
    assert 7 <= bench.pauses[0] <= 7.5
    assert 25 < bench.pauses[1] <= 31
    assert 1 <= bench.pauses[2] <= 2


def test_a_server_that_asks_for_too_long_a_wait_has_failed(bench: Bench) -> None:
    judge = bench.judge(lambda n, r: Reply(ERROR, 429, {"Retry-After": "3600"}), longest_wait=60)
    fault = failure(judge)
    assert fault.reason == "rate_limited"
    assert "3600 s" in str(fault)
    assert bench.pauses == []


@pytest.mark.parametrize(
    ("status", "words"), [(401, "OPENAI_API_KEY"), (403, "another api_key"), (404, "base_url"), (418, "luck")]
)
def test_a_refusal_for_good_says_what_to_set(bench: Bench, status: int, words: str) -> None:
    fault = failure(bench.judge(lambda n, r: Reply(ERROR, status)))
    assert fault.reason == "refused"
    assert f"answered {status}" in str(fault)
    assert words in str(fault)
    assert len(bench.server.requests) == 1


def test_an_empty_account_is_not_asked_again(bench: Bench) -> None:
    error = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    fault = failure(bench.judge(lambda n, r: Reply(error, 429)))
    assert fault.reason == "refused"
    assert "no credit left" in str(fault)
    assert len(bench.server.requests) == 1


# The form of the answer


def refusing(*forms: str) -> Answer:
    def answer(number: int, request: Request) -> Reply:
        form = request.get("response_format", {}).get("type", "text")
        if form in forms:
            return Reply({"error": {"message": f"response_format {form} is unknown here"}}, 400)
        return by_content(number, request)

    return answer


@pytest.mark.parametrize(
    ("lacking", "taken"),
    [((), "json_schema"), (("json_schema",), "json_object"), (("json_schema", "json_object"), "text")],
)
def test_the_strictest_form_that_the_server_has_is_found_and_remembered(
    bench: Bench, lacking: tuple[str, ...], taken: str
) -> None:
    judge = bench.judge(refusing(*lacking))
    assert values(judge) == VALUES
    assert len(bench.server.requests) == len(lacking) + 1
    assert values(judge.with_seed(1)) == VALUES
    assert len(bench.server.requests) == len(lacking) + 2
    assert bench.server.requests[-1].get("response_format", {}).get("type", "text") == taken


def test_a_server_that_refuses_in_every_form_is_no_lack_of_forms(bench: Bench) -> None:
    broken = threading.Event()
    broken.set()
    judge = bench.judge(lambda n, r: Reply(ERROR, 400) if broken.is_set() else by_content(n, r))
    fault = failure(judge)
    assert fault.reason == "refused"
    assert "no such luck" in str(fault)
    assert len(bench.server.requests) == 3
    broken.clear()
    judge(GROUP)
    assert bench.server.requests[-1]["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("structured", ["json_schema", "json_object", "text"])
def test_a_form_that_is_asked_for_is_the_only_one(bench: Bench, structured: Any) -> None:
    failure(bench.judge(refusing("json_schema", "json_object", "text"), structured=structured))
    (request,) = bench.server.requests
    assert request.get("response_format", {}).get("type", "text") == structured
