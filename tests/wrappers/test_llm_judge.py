"""The judge against a real HTTP server on loopback that speaks the wire protocol."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, Criterion, JudgingError, Rubric, Step
from art_gym.wrappers.judging.judge_budget import JudgeBudget
from art_gym.wrappers.judging.judge_cache import CachedAnswer, JudgeCache
from art_gym.wrappers.judging.llm_judge import LLMJudge
from tests.wrappers.judge_server import (
    ERROR,
    GROUP,
    VALUES,
    Answer,
    Bench,
    JudgeServer,
    Reply,
    Request,
    answer_json,
    attempt,
    by_content,
    edited,
    failure,
    good,
    marker,
    says,
    shown,
    values,
)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


# What is asked and answered


def test_one_request_scores_a_group(bench: Bench) -> None:
    judge = bench.judge(temperature=0.4, max_answer_tokens=777, extra_body={"min_p": 0.1})
    scores = judge(GROUP)
    assert {id_: score.value for id_, score in scores.items()} == VALUES
    assert list(scores) == ["a", "b", "c"]
    assert scores["b"].explanation == "b did so.", "in the caller's words, not the question's"
    (request,) = bench.server.requests
    assert bench.server.paths == ["/v1/chat/completions"]
    assert (request["model"], request["temperature"], request["min_p"]) == ("m", 0.4, 0.1)
    assert request["max_completion_tokens"] == 777
    assert request["response_format"]["type"] == "json_schema"
    statistics = judge.statistics
    assert (statistics.groups, statistics.requests) == (1, 1)
    assert (statistics.prompt_tokens, statistics.completion_tokens) == (100, 20)
    assert statistics.failures == {}


def test_scores_go_by_id_whatever_the_order_of_the_answer(bench: Bench) -> None:
    for edit in (list.reverse, lambda scores: scores.sort(key=lambda entry: entry["score"])):
        assert values(bench.judge(edited(edit))) == VALUES


def test_the_same_attempt_twice_is_judged_once(bench: Bench) -> None:
    judge = bench.judge()
    twins = [*GROUP, replace(GROUP[1], id="d")]
    scores = judge(twins)
    assert scores["d"].value == scores["b"].value == 0.9
    assert scores["d"].explanation == "b/d did so."
    judge(GROUP)
    assert bench.server.requests[0] == bench.server.requests[1]


def test_another_rubric_comes_with_the_call_and_its_parts_come_back(bench: Bench) -> None:
    def answer(number: int, request: Request) -> Reply:
        return says(answer_json(dict.fromkeys(shown(request), 0.5), parts={"speed": 0.25, "style": 1}))

    rubric = Rubric((Criterion("speed", 0.5), Criterion("style", 0.5)))
    judge = bench.judge(answer)
    assert judge(GROUP, rubric)["a"].parts == {"speed": 0.25, "style": 1.0}
    assert judge(GROUP)["a"].parts == {}, "one criterion has no parts"


def test_an_impossible_group_is_the_callers_mistake(bench: Bench) -> None:
    judge = bench.judge()
    for group in ([], [GROUP[0], GROUP[0]], [GROUP[0], replace(GROUP[1], task="another")]):
        with pytest.raises(JudgingError):
            judge(group)
    assert bench.server.requests == []
    assert judge.statistics.groups == 0


# Money, disk and threads


def test_a_budget_of_requests_stops_with_words(bench: Bench) -> None:
    budget = JudgeBudget(max_requests=2)
    judge, other = bench.judge(budget=budget), bench.judge(budget=budget)
    judge(GROUP)
    other(GROUP)
    fault = failure(judge)
    assert fault.reason == "budget"
    assert "2 requests are used up" in str(fault)
    assert len(bench.server.requests) == 1


def test_retries_and_repairs_count_in_the_budget(bench: Bench) -> None:
    judge = bench.judge(lambda n, r: Reply(ERROR, 500) if n == 0 else says("?"), budget=JudgeBudget(3))
    assert failure(judge).reason == "budget"
    assert (judge.statistics.requests, judge.statistics.retries, judge.statistics.repairs) == (3, 1, 2)


def test_the_cost_is_what_the_server_counts(bench: Bench) -> None:
    prices = {"prompt_price_per_million": 1_000.0, "completion_price_per_million": 10_000.0}
    budget = JudgeBudget(max_cost=100.0, **prices)
    judge = bench.judge(budget=budget)
    judge(GROUP)
    assert judge.statistics.cost == pytest.approx(0.1 + 0.2)
    assert budget.cost == pytest.approx(0.3)

    refused = bench.judge(lambda n, r: Reply(ERROR, 401), budget=budget)
    failure(refused)
    assert budget.cost == pytest.approx(0.3), "a refusal costs nothing"
    lost = bench.judge(lambda n, r: Reply(b"{cut"), budget=budget, max_retries=0)
    failure(lost)
    assert budget.cost > 40, "what was lost on the way may have been billed"
    assert lost.statistics.cost == pytest.approx(budget.cost - 0.3)


def test_a_server_that_does_not_count_is_estimated(bench: Bench) -> None:
    judge = bench.judge(lambda n, r: says(good(r), usage=None))
    judge(GROUP)
    length = sum(len(message["content"].encode()) for message in bench.server.requests[0]["messages"])
    assert judge.statistics.prompt_tokens == pytest.approx(length / 3, abs=2)
    assert judge.statistics.completion_tokens > 10


def test_a_rerun_costs_nothing_and_says_the_same(bench: Bench, tmp_path: Any) -> None:
    judge = bench.judge(cache=tmp_path / "cache.db")
    scores = judge(GROUP)
    again = bench.judge(cache=JudgeCache(tmp_path / "cache.db"))
    renamed = [replace(one, id=f"x{one.id}") for one in GROUP[::-1]]
    found = again([*renamed, replace(GROUP[0], id="twin")])
    assert {id_: score.value for id_, score in found.items()} == {
        **{f"x{id_}": score.value for id_, score in scores.items()},
        "twin": 0.3,
    }
    assert again(GROUP) == scores, "explanations too"
    assert bench.server.requests == []
    assert (again.statistics.cache_hits, again.statistics.cost, again.statistics.requests) == (2, 0.0, 0)


def test_another_question_is_not_found_in_the_cache(bench: Bench, tmp_path: Any) -> None:
    path = tmp_path / "cache.db"
    bench.judge(cache=path)(GROUP)
    for options in ({"temperature": 0.5}, {"max_answer_tokens": 99}, {"extra_body": {"x": 1}}, {"seed": 1}):
        judge = bench.judge(cache=path, **options)
        judge(GROUP)
        assert judge.statistics.requests == 1, options
    judge = bench.judge(cache=path)
    judge(GROUP, Rubric((Criterion("style", 1.0),)))
    judge([replace(one, ending="truncated") for one in GROUP])
    with LLMJudge("another", bench.server.url, cache=path) as other:
        other(GROUP)
    assert len(bench.server.requests) == 3
    assert judge.statistics.cache_hits == 0


def test_a_mended_answer_is_kept_and_a_failure_is_not(bench: Bench, tmp_path: Any) -> None:
    judge = bench.judge(lambda n, r: says("?") if n < 4 else by_content(n, r), cache=tmp_path / "c.db")
    failure(judge)
    assert values(judge) == VALUES
    requests = judge.statistics.requests
    assert requests == 5
    assert values(judge) == VALUES
    assert judge.statistics.requests == requests


def test_a_damaged_cache_is_an_error_and_no_failure_of_the_judge(bench: Bench, tmp_path: Any) -> None:
    path = tmp_path / "c.db"
    judge = bench.judge(cache=path)
    path.write_bytes(b"gone")
    with pytest.raises(JudgingError, match=r"c\.db"):
        judge(GROUP)


def test_a_row_that_is_no_answer_is_an_error_and_no_score(bench: Bench, tmp_path: Any) -> None:
    class Odd(JudgeCache):
        def get(self, key: str) -> CachedAnswer | None:
            return CachedAnswer("m", "answered", "?")

    with pytest.raises(JudgingError, match="does not fit its question"):
        bench.judge(cache=Odd(tmp_path / "c.db"))(GROUP)


def test_threads_share_a_judge_within_its_limit(bench: Bench, tmp_path: Any) -> None:
    together = threading.Event()

    def slow(number: int, request: Request) -> Reply:
        if number:
            together.set()
        assert together.wait(60)
        time.sleep(0.02)
        return by_content(number, request)

    judge = bench.judge(slow, max_concurrency=3, cache=tmp_path / "c.db")
    groups = [[attempt("a", n / 20), attempt("b", 1 - n / 20)] for n in range(8)] * 2
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda group: values(judge, group), groups))
    assert found == [{one.id: marker(one.steps[0].reply) for one in group} for group in groups]
    assert 2 <= bench.server.most_busy <= 3
    assert judge.statistics.groups == 16


def test_threads_that_ask_the_same_get_the_same(bench: Bench, tmp_path: Any) -> None:
    """The server's answers differ, as a sampling model's do; the first on disk is everybody's."""

    together = threading.Event()

    def fickle(number: int, request: Request) -> Reply:
        if number:
            together.set()
        assert together.wait(60)
        return says(answer_json(dict.fromkeys(shown(request), number / 10)))

    judge = bench.judge(fickle, cache=tmp_path / "c.db")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: tuple(values(judge).values()), range(4)))
    assert len(set(found)) == 1
    assert len(bench.server.requests) > 1


def test_a_closed_judge_says_so(bench: Bench) -> None:
    with bench.judge() as judge:
        judge(GROUP)
    with pytest.raises(JudgingError, match="closed"):
        judge(GROUP)


# Orders, and groups that are too long


def test_seeds_change_the_order_and_the_given_order_is_kept(bench: Bench) -> None:
    judge = bench.judge()
    for seed in range(8):
        assert values(judge.with_seed(seed)) == VALUES
    orders = [[marker(text) for text in shown(r).values()] for r in bench.server.requests]
    assert len({tuple(order) for order in orders}) > 2
    fixed = judge.in_given_order()
    assert values(fixed) == values(fixed, GROUP[::-1]) == VALUES
    orders = [[marker(text) for text in shown(r).values()] for r in bench.server.requests[-2:]]
    assert orders == [[0.3, 0.9, 0.5], [0.5, 0.9, 0.3]]
    assert judge.statistics.requests == 10


def small_reader(most: int, slope: float = 1.0) -> Answer:
    """Refuses what has more characters; its scale depends on how many attempts it sees."""

    def answer(number: int, request: Request) -> Reply:
        if sum(len(message["content"]) for message in request["messages"]) > most:
            error = {"message": "This model's maximum context length is 9 tokens", "code": None}
            return Reply({"error": error}, 400)
        texts = shown(request)
        stretch = slope if len(texts) % 2 else 1.0
        return says(answer_json({label: stretch * marker(text) for label, text in texts.items()}))

    return answer


def long_group(count: int, characters: int) -> list[Attempt]:
    return [attempt(f"id{n}", round(n / (count - 1), 3), "x" * characters) for n in range(count)]


def test_a_long_group_is_judged_in_blocks_on_one_scale(bench: Bench) -> None:
    group = long_group(12, 3_000)
    judge = bench.judge(small_reader(10**6, slope=0.7), max_context_tokens=13_000)
    found = values(judge, group)
    ranked = sorted(found, key=lambda id_: found[id_])
    assert ranked == [one.id for one in group]
    sizes = [len(shown(request)) for request in bench.server.requests]
    assert len(sizes) > 2
    assert sum(sizes) == 12 + 2 * (len(sizes) - 1), "two anchors in every later block"
    steps = [found[later] - found[earlier] for earlier, later in itertools.pairwise(ranked)]
    assert max(steps) - min(steps) < 0.02, "even steps stay even across blocks"


def test_what_the_server_finds_too_long_is_halved_until_it_is_taken(bench: Bench, tmp_path: Any) -> None:
    group = long_group(6, 9_000)
    path = tmp_path / "c.db"
    judge = bench.judge(small_reader(20_000), cache=path)
    found = values(judge, group)
    assert sorted(found, key=lambda id_: found[id_]) == [one.id for one in group]
    assert judge.statistics.cuts >= 1
    again = bench.judge(small_reader(20_000), cache=path)
    assert values(again, group) == found
    assert bench.server.requests == [], "refusals are remembered too"


def test_a_server_that_takes_nothing_fails_in_the_end(bench: Bench) -> None:
    fault = failure(bench.judge(small_reader(100)), long_group(4, 2_000))
    assert fault.reason == "too_long"
    assert len(bench.server.requests) < 12


def test_an_endless_attempt_is_cut_and_judged(bench: Bench) -> None:
    group = [*GROUP, Attempt("long", GROUP[0].task, (Step("x" * 500_000 + " quality=0.7", "over"),))]
    judge = bench.judge()
    assert values(judge, group) == {**VALUES, "long": 0.7}
    assert "characters left out here" in bench.server.requests[0]["messages"][1]["content"]


# What a user may get wrong


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_context_tokens": 0}, "max_context_tokens is at least 1"),
        ({"max_answer_tokens": 20_000}, "max_answer_tokens"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_repairs": -1}, "max_repairs"),
        ({"timeout": 0}, "timeout"),
        ({"structured": "json_shema"}, "did you mean `json_schema`"),
        ({"extra_body": {"x": object()}}, "JSON"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(JudgingError, match=words):
        LLMJudge("m", "http://127.0.0.1:1/v1", **options)


def test_a_missing_key_and_a_missing_package_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(JudgingError, match="set api_key or OPENAI_API_KEY"):
        LLMJudge("m")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r"pip install \"art-gym\[openai\]\""):
        LLMJudge("m", "http://127.0.0.1:1/v1")


# What must hold for every group


@pytest.fixture(scope="module")
def content_judge() -> Iterator[tuple[LLMJudge, JudgeServer]]:
    server = JudgeServer(by_content)
    with LLMJudge("m", server.url) as judge:
        yield judge, server
    server.close()


QUALITIES = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=6)


@settings(deadline=None, max_examples=50)
@given(QUALITIES, st.randoms(use_true_random=False))
def test_order_names_and_twins_change_nothing(
    content_judge: tuple[LLMJudge, JudgeServer], qualities: list[float], random: Any
) -> None:
    judge, server = content_judge
    group = [attempt(str(number), quality) for number, quality in enumerate(qualities)]
    scores = judge(group)
    assert [scores[str(n)].value for n in range(len(qualities))] == qualities
    changed = [*group, replace(random.choice(group), id="twin")]
    random.shuffle(changed)
    names = {one.id: f"name {place}" for place, one in enumerate(changed)}
    renamed = judge([replace(one, id=names[one.id]) for one in changed])
    assert {id_: renamed[names[id_]].value for id_ in scores} == {id_: s.value for id_, s in scores.items()}
    assert server.requests[-1] == server.requests[-2]
