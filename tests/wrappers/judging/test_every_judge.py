"""What holds for every judge, and the arguments that are refused."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, Judge, JudgingError, Score, judge_group
from art_gym.wrappers.judging.budget import JudgeBudget
from art_gym.wrappers.judging.llm_judge import LLMJudge
from art_gym.wrappers.judging.rubric_judge import RubricJudge
from tests.wrappers.judging.judge_server import GROUP, JudgeServer, attempt, by_content, values

JUDGES: dict[str, Callable[[LLMJudge], Judge]] = {
    "rubric": lambda model: RubricJudge(),
    "model": lambda model: model,
}
every_judge = pytest.mark.parametrize("name", JUDGES)


@pytest.fixture(scope="module")
def model() -> Iterator[LLMJudge]:
    server = JudgeServer(by_content)
    with LLMJudge("m", server.url) as judge:
        yield judge
    server.close()


@every_judge
@settings(max_examples=20)
@given(st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=5), st.randoms())
def test_order_names_and_twins_change_no_score(
    model: LLMJudge, name: str, qualities: list[float], random: Any
) -> None:
    judge = JUDGES[name](model)
    facts = [{"expected": 1, "result": quality} for quality in qualities]
    group = [attempt(str(n), quality, facts=facts[n]) for n, quality in enumerate(qualities)]
    scores = values(judge, group)
    if name == "model":
        assert list(scores.values()) == qualities
    changed = [replace(one, id=f"x{one.id}") for one in [*group, replace(random.choice(group), id="twin")]]
    random.shuffle(changed)
    again = values(judge, changed)
    assert {id_: again[f"x{id_}"] for id_ in scores} == scores


@every_judge
@pytest.mark.parametrize(
    "group",
    [[], [GROUP[0], GROUP[0]], [GROUP[0], replace(GROUP[1], task="another")]],
    ids=("empty", "one id twice", "two tasks"),
)
def test_what_is_no_group_is_refused(model: LLMJudge, name: str, group: list[Attempt]) -> None:
    with pytest.raises(JudgingError):
        JUDGES[name](model)(group)


def test_what_is_no_score_is_named_and_numpys_numbers_are_floats() -> None:
    assert repr(Score(np.float32(0.5), parts={"tone": np.int64(1)})) == repr(Score(0.5, parts={"tone": 1.0}))
    for scores in ({"a": 0.5}, [0.5], None):
        with pytest.raises(TypeError, match="returns a dict with a Score for each attempt's id, not "):
            judge_group(lambda group, rubric, scores=scores: scores, GROUP)


def llm(**options: Any) -> LLMJudge:
    return LLMJudge("m", "http://127.0.0.1:1/v1", **options)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: llm(max_context_tokens=0), "max_context_tokens"),
        (lambda: llm(max_answer_tokens=20_000), "max_answer_tokens"),
        (lambda: llm(max_concurrency=0), "max_concurrency"),
        (lambda: llm(max_retries=-1), "max_retries"),
        (lambda: llm(max_repairs=-1), "max_repairs"),
        (lambda: llm(timeout=0), "timeout"),
        (lambda: llm(structured="json_shema"), "`json_schema`"),
        (lambda: llm(extra_body={"x": object()}), "JSON"),
        (lambda: JudgeBudget(max_cost=1.0), "prices"),
        (lambda: JudgeBudget(max_requests=-1), "max_requests"),
        (lambda: JudgeBudget(max_cost=math.nan, prompt_price_per_million=1.0), "max_cost"),
        (lambda: JudgeBudget(completion_price_per_million=-1.0), "completion_price_per_million"),
        (lambda: JudgeBudget(prompt_price_per_million=math.inf), "prompt_price_per_million"),
    ],
)
def test_arguments_out_of_range_are_refused(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(JudgingError, match=named):
        make()
