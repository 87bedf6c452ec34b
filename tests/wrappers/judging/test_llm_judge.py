"""The judge against a real HTTP server on loopback that speaks the wire protocol."""

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from art_gym.wrappers.judging import Attempt, Criterion, JudgeFailedError, JudgingError, Rubric
from art_gym.wrappers.judging.budget import JudgeBudget
from art_gym.wrappers.judging.cache import CachedAnswer, JudgeCache
from art_gym.wrappers.judging.http_client import Answer as ReadAnswer
from art_gym.wrappers.judging.http_client import is_context_length_error, read_completion, retry_after
from art_gym.wrappers.judging.llm_judge import LLMJudge
from tests.wrappers.judging.judge_server import (
    ERROR,
    GROUP,
    VALUES,
    Answer,
    Bench,
    Reply,
    Request,
    answer_json,
    attempt,
    by_content,
    completion,
    edited,
    failure,
    first_then_good,
    good,
    marker,
    says,
    shown,
    values,
)

NOW = 1_700_000_000.0


def test_one_request_scores_a_group(bench: Bench) -> None:
    judge = bench.judge(temperature=0.4, max_answer_tokens=777, extra_body={"min_p": 0.1})
    scores = judge(GROUP)
    assert {id_: score.value for id_, score in scores.items()} == VALUES
    assert list(scores) == ["a", "b", "c"]
    assert scores["b"].explanation == "b did so.", "by the caller's ids, not the question's"
    (request,) = bench.requests
    assert bench.server.paths == ["/v1/chat/completions"]
    assert (request["model"], request["temperature"], request["min_p"]) == ("m", 0.4, 0.1)
    assert request["max_completion_tokens"] == 777
    counts = judge.statistics
    assert (counts.groups, counts.requests, counts.prompt_tokens, counts.completion_tokens) == (1, 1, 100, 20)
    assert counts.failures == {}


def test_the_same_attempt_twice_is_judged_once(bench: Bench) -> None:
    judge = bench.judge()
    scores = judge([*GROUP, replace(GROUP[1], id="d")])
    assert scores["d"].value == scores["b"].value == 0.9
    assert scores["d"].explanation == "b/d did so."
    judge(GROUP)
    assert bench.requests[0] == bench.requests[1]


def test_another_rubric_comes_with_the_call_and_its_parts_come_back(bench: Bench) -> None:
    def answer(number: int, request: Request) -> Reply:
        return says(answer_json(dict.fromkeys(shown(request), 0.5), parts={"speed": 0.25, "style": 1}))

    rubric = Rubric((Criterion("speed", 0.5), Criterion("style", 0.5)))
    judge = bench.judge(answer)
    assert judge(GROUP, rubric)["a"].parts == {"speed": 0.25, "style": 1.0}
    assert judge(GROUP)["a"].parts == {}, "one criterion has no parts"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (edited(lambda s: s.pop()), "there is no score for"),
        (edited(lambda s: s[0].update(score=7.5)), "not 7.5"),
        (lambda n, r: says(good(r)[:-30], finish="length"), "be brief"),
        (lambda n, r: says(None), "it is empty"),
    ],
)
def test_a_bad_answer_is_mended_or_fails(bench: Bench, bad: Answer, problem: str) -> None:
    judge = bench.judge(first_then_good(bad))
    assert values(judge) == VALUES
    first, second = bench.requests
    assert second["messages"][:2] == first["messages"]
    assert problem in second["messages"][3]["content"]
    assert (judge.statistics.repairs, judge.statistics.failures) == (1, {})

    fault = failure(bench.judge(bad, max_repairs=1))
    assert (fault.reason, len(bench.requests)) == ("malformed", 2)
    assert problem in str(fault)


def test_a_repair_shows_the_last_answer_alone(bench: Bench) -> None:
    failure(bench.judge(lambda number, request: says(f"answer {number} " + "x" * 5_000), max_repairs=3))
    assert [len(request["messages"]) for request in bench.requests] == [2, 4, 4, 4]
    last = bench.requests[-1]["messages"][2]["content"]
    assert last.startswith("answer 2")
    assert len(last) <= 2_000


def test_a_completion_is_read() -> None:
    body = json.dumps(completion("héllo", usage=(7, 3))).encode()
    for written in (body, b"\xef\xbb\xbf" + body):
        assert read_completion(written, "m") == ReadAnswer("héllo", False, 7, 3)
    cut = completion(None, usage=None, finish="length")
    assert read_completion(json.dumps(cut).encode(), "m") == ReadAnswer("", True)
    assert read_completion(json.dumps(completion("\ud800")).encode(), "m").text == "\\ud800"
    for usage in (3, {}, {"prompt_tokens": "many", "completion_tokens": -1}, {"prompt_tokens": 10**400}):
        answer = read_completion(json.dumps(completion("x") | {"usage": usage}).encode(), "m")
        assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


DECLINED = completion(None)
DECLINED["choices"][0]["message"]["refusal"] = "I cannot judge."


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "garbled"),
        (b"{cut", "garbled"),
        (b"[]", "garbled"),
        (b"[" * 100_000, "garbled"),
        (json.dumps(completion("x")).encode("utf-16"), "garbled"),
        (b'{"choices": []}', "garbled"),
        (b'{"choices": [3]}', "garbled"),
        (b'{"choices": [{"message": "x"}]}', "garbled"),
        (b'{"choices": [{"message": {"content": [{"type": "text"}]}}]}', "garbled"),
        (b'{"error": {"message": "overloaded"}}', "garbled"),
        (json.dumps(completion("", finish="content_filter")).encode(), "refused"),
    ],
)
def test_anything_else_is_a_failure_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(JudgeFailedError, match="`m` at http") as caught:
        read_completion(body, "`m` at http://a")
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW + 30).replace("-0000", "")}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "message", "code", "expected"),
    [
        (400, "This model's maximum context length is 4096 tokens.", None, True),
        (400, "nope", "context_length_exceeded", True),
        (422, "prompt is too long: 210000 tokens > 200000 maximum", None, True),
        (413, "Payload Too Large", None, True),
        (400, "response_format is not supported", None, False),
        (401, "the key is too long", None, False),
        (500, "context length", None, False),
    ],
)
def test_too_long_differs_from_other_rejections(
    status: int, message: str, code: str | None, expected: bool
) -> None:
    assert is_context_length_error(status, message, code) is expected


HANG = Reply(hang=True)
STALL = Reply(completion("x" * 500), drop_after=100, stall=True)
DRIP = Reply(drip=0.02)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Reply(ERROR, 429), "rate_limited"),
        (Reply(ERROR, 500), "server_error"),
        (Reply(b"<html>bad gateway</html>", 502), "server_error"),
        (Reply(completion("x" * 500), drop_after=200), "connection"),
        (Reply(completion("x"), drop_after=0), "connection"),
        (Reply(b"<html>welcome</html>", headers={"Content-Type": "text/html"}), "garbled"),
        (HANG, "timeout"),
        (STALL, "timeout"),
        (DRIP, "timeout"),
    ],
)
def test_a_fault_that_passes_costs_a_retry_and_one_that_stays_fails(
    bench: Bench, fault: Reply, reason: str
) -> None:
    options = {"timeout": 0.3} if fault in (HANG, STALL, DRIP) else {}
    judge = bench.judge(first_then_good(lambda n, r: fault), **options)
    assert values(judge) == VALUES
    assert (judge.statistics.requests, judge.statistics.retries) == (2, 1)
    assert 0.25 <= bench.pauses[0] <= 0.5

    assert failure(bench.judge(lambda n, r: fault, max_retries=2, **options)).reason == reason
    assert len(bench.requests) == 3


def test_pauses_double_up_to_a_bound_and_no_longer_than_the_server_asks(bench: Bench) -> None:
    failure(bench.judge(lambda n, r: Reply(ERROR, 500), max_retries=8))
    for number, pause in enumerate(bench.pauses):
        longest = min(0.5 * 2**number, 16)
        assert longest / 2 <= pause <= longest
    assert len(set(bench.pauses)) == 8
    bench.pauses.clear()
    waits = [{"Retry-After": "7"}, {}]
    judge = bench.judge(lambda n, r: Reply(ERROR, 429, waits[n]) if n < 2 else by_content(n, r))
    assert values(judge) == VALUES
    assert 7 <= bench.pauses[0] <= 7.5
    assert 0.5 <= bench.pauses[1] <= 1
    too_long = bench.judge(lambda n, r: Reply(ERROR, 429, {"Retry-After": "3600"}))
    assert failure(too_long).reason == "rate_limited"
    assert len(bench.pauses) == 2


@pytest.mark.parametrize(
    ("reply", "advice"),
    [
        (Reply(ERROR, 401), "OPENAI_API_KEY"),
        (Reply(ERROR, 403), "another api_key"),
        (Reply(ERROR, 404), "base_url"),
        (Reply(ERROR, 418), "no such luck"),
        (Reply({"error": {"message": "quota", "code": "insufficient_quota"}}, 429), "no credit left"),
        (Reply(DECLINED), "I cannot judge."),
    ],
)
def test_a_refusal_is_not_asked_again_and_says_what_to_set(bench: Bench, reply: Reply, advice: str) -> None:
    fault = failure(bench.judge(lambda n, r: reply))
    assert fault.reason == "refused"
    assert advice in str(fault)
    assert len(bench.requests) == 1


def form_of(request: Request) -> str:
    return str(request.get("response_format", {}).get("type", "text"))


LITERAL = {"error": {"message": "literal_error in body.response_format.type"}}  # llama_cpp.server's


def lacking(*forms: str, refusal: Reply = Reply(ERROR, 400)) -> Answer:  # noqa: B008 (frozen)
    def answer(number: int, request: Request) -> Reply:
        return refusal if form_of(request) in forms else by_content(number, request)

    return answer


@pytest.mark.parametrize("refusal", [Reply(ERROR, 400), Reply(LITERAL, 500)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_strictest_form_that_the_server_has_is_found_and_remembered(
    bench: Bench, place: int, refusal: Reply
) -> None:
    forms = ["json_schema", "json_object", "text"]
    judge = bench.judge(lacking(*forms[:place], refusal=refusal))
    assert values(judge) == values(judge) == VALUES
    assert [form_of(request) for request in bench.requests] == [*forms[: place + 1], forms[place]]


def test_a_server_that_rejects_every_form_does_not_count_as_lacking_them(bench: Bench) -> None:
    judge = bench.judge(lambda n, r: Reply(ERROR, 400) if n < 3 else by_content(n, r))
    assert failure(judge).reason == "refused"
    judge(GROUP)
    assert [form_of(request) for request in bench.requests[2:]] == ["text", "json_schema"]
    failure(bench.judge(lacking("json_schema", "json_object", "text"), structured="json_object"))
    assert [form_of(request) for request in bench.requests] == ["json_object"], "the only one asked for"


def test_judges_share_a_budget_and_retries_and_repairs_count(bench: Bench) -> None:
    budget = JudgeBudget(max_requests=4)
    bench.judge(budget=budget)(GROUP)
    judge = bench.judge(lambda n, r: Reply(ERROR, 500) if n == 0 else says("?"), budget=budget)
    assert failure(judge).reason == "budget"
    counts = judge.statistics
    assert (counts.requests, counts.retries, counts.repairs) == (3, 1, 2)


def test_the_cost_is_what_the_server_counts(bench: Bench) -> None:
    prices = {"prompt_price_per_million": 1_000.0, "completion_price_per_million": 10_000.0}
    budget = JudgeBudget(max_cost=100.0, **prices)
    judge = bench.judge(budget=budget)
    judge(GROUP)
    assert judge.statistics.cost == pytest.approx(0.1 + 0.2)
    failure(bench.judge(lambda n, r: Reply(ERROR, 401), budget=budget))
    assert budget.cost == pytest.approx(0.3), "a refusal costs nothing"
    lost = bench.judge(lambda n, r: Reply(b"{cut"), budget=budget, max_retries=0)
    failure(lost)
    assert budget.cost > 40, "a lost request may have been billed"
    assert lost.statistics.cost == pytest.approx(budget.cost - 0.3)


def test_a_server_that_does_not_count_is_estimated(bench: Bench) -> None:
    judge = bench.judge(lambda n, r: says(good(r), usage=None))
    judge(GROUP)
    length = sum(len(message["content"].encode()) for message in bench.requests[0]["messages"])
    assert judge.statistics.prompt_tokens == pytest.approx(length / 3, abs=2)
    assert judge.statistics.completion_tokens > 10


def test_a_rerun_costs_nothing_and_gives_the_same(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    first = bench.judge(lambda n, r: says("?") if n < 4 else by_content(n, r), cache=path)
    failure(first)
    scores = first(GROUP)
    assert first.statistics.requests == 5, "a mended answer is cached, a failure is not"
    again = bench.judge(cache=JudgeCache(path))
    renamed = [replace(one, id=f"x{one.id}") for one in GROUP[::-1]]
    found = values(again, [*renamed, replace(GROUP[0], id="twin")])
    assert found == {"xa": 0.3, "xb": 0.9, "xc": 0.5, "twin": 0.3}
    assert again(GROUP) == scores, "explanations too"
    assert bench.requests == []
    assert (again.statistics.cache_hits, again.statistics.cost, again.statistics.requests) == (2, 0.0, 0)


def test_another_question_is_not_found_in_the_cache(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    bench.judge(cache=path)(GROUP)
    for options in ({"temperature": 0.5}, {"max_answer_tokens": 99}, {"extra_body": {"x": 1}}, {"seed": 1}):
        bench.judge(cache=path, **options)(GROUP)
        assert len(bench.requests) == 1, options
    judge = bench.judge(cache=path)
    judge(GROUP, Rubric((Criterion("style", 1.0),)))
    judge([replace(one, ending="truncated") for one in GROUP])
    with LLMJudge("another", bench.server.url, cache=path) as other:
        other(GROUP)
    assert len(bench.requests) == 3


def test_a_damaged_cache_is_an_error_and_no_failure_of_the_judge(bench: Bench, tmp_path: Path) -> None:
    class Odd(JudgeCache):
        def get(self, key: str) -> CachedAnswer | None:
            return CachedAnswer("answered", "?")

    with pytest.raises(JudgingError, match="does not fit its question"):
        bench.judge(cache=Odd(tmp_path / "odd.db"))(GROUP)


def when_two_ask(answer: Answer) -> Answer:
    """Answers the first request only once a second one has come."""
    together = threading.Event()

    def wait(number: int, request: Request) -> Reply:
        if number:
            together.set()
        assert together.wait(300)
        time.sleep(0.02)
        return answer(number, request)

    return wait


def test_threads_share_a_judge_within_its_limit(bench: Bench, tmp_path: Path) -> None:
    judge = bench.judge(when_two_ask(by_content), max_concurrency=3, cache=tmp_path / "c.db")
    groups = [[attempt("a", n / 20), attempt("b", 1 - n / 20)] for n in range(8)] * 2
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda group: values(judge, group), groups))
    assert found == [{one.id: marker(one.steps[0].reply) for one in group} for group in groups]
    assert 2 <= bench.server.most_busy <= 3
    assert judge.statistics.groups == 16


def test_threads_that_ask_the_same_get_the_first_answer_on_disk(bench: Bench, tmp_path: Path) -> None:
    fickle = when_two_ask(lambda n, r: says(answer_json(dict.fromkeys(shown(r), n / 10))))
    judge = bench.judge(fickle, cache=tmp_path / "c.db")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: tuple(values(judge).values()), range(4)))
    assert len(set(found)) == 1
    assert len(bench.requests) > 1


def test_a_judge_without_a_server_fails_and_a_closed_one_is_a_mistake(bench: Bench) -> None:
    with bench.judge(max_retries=0) as judge:
        bench.server.close()
        assert failure(judge).reason == "connection"
    with pytest.raises(JudgingError, match="closed"):
        judge(GROUP)


def test_seeds_change_the_order(bench: Bench) -> None:
    judge = bench.judge()
    for judge.seed in range(8):
        assert values(judge) == VALUES
    orders = [tuple(marker(text) for text in shown(r).values()) for r in bench.requests]
    assert len(set(orders)) > 2


def small_reader(most: int) -> Answer:
    """Rejects what has more characters."""

    def answer(number: int, request: Request) -> Reply:
        if sum(len(message["content"]) for message in request["messages"]) > most:
            return Reply({"error": {"message": "This model's maximum context length is 9 tokens"}}, 400)
        return by_content(number, request)

    return answer


def long_group(count: int, characters: int) -> list[Attempt]:
    return [attempt(f"id{n}", round(n / (count - 1), 3), "x" * characters) for n in range(count)]


def test_a_long_group_fits_into_one_question(bench: Bench) -> None:
    group = long_group(12, 3_000)
    judge = bench.judge(max_context_tokens=13_000)
    assert values(judge, group) == {one.id: marker(one.steps[0].reply) for one in group}
    assert len(bench.requests) == 1
    endless = [*GROUP, attempt("long", 0.7, "x" * 500_000)]
    assert values(bench.judge(), endless) == {**VALUES, "long": 0.7}
    assert "characters left out here" in bench.requests[0]["messages"][1]["content"]


def test_what_the_server_finds_too_long_is_halved_until_it_is_taken(bench: Bench, tmp_path: Path) -> None:
    group = long_group(6, 9_000)
    judge = bench.judge(small_reader(20_000), cache=tmp_path / "c.db")
    found = values(judge, group)
    assert sorted(found, key=lambda id_: found[id_]) == [one.id for one in group]
    assert judge.statistics.cuts >= 1
    assert values(bench.judge(small_reader(20_000), cache=tmp_path / "c.db"), group) == found
    assert bench.requests == [], "rejections are remembered too"
    assert failure(bench.judge(small_reader(100)), long_group(4, 2_000)).reason == "too_long"
    assert len(bench.requests) < 12


def test_a_missing_key_and_a_missing_package_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(JudgingError, match="OPENAI_API_KEY"):
        LLMJudge("m")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r"pip install \"art-gym\[openai\]\""):
        LLMJudge("m", "http://127.0.0.1:1/v1")
