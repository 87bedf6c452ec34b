from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging import JudgeFailedError
from art_gym.wrappers.judging.budget import JudgeBudget


def test_money_is_reserved_and_given_back() -> None:
    budget = JudgeBudget(max_cost=1.0, prompt_price_per_million=2.0, completion_price_per_million=10.0)
    assert budget.price(100_000, 30_000) == pytest.approx(0.5)
    reserved = budget.reserve(200_000, 50_000)
    assert budget.cost == pytest.approx(0.9)
    with pytest.raises(JudgeFailedError) as caught:
        budget.reserve(100_000, 0)
    assert caught.value.reason == "budget"
    assert budget.settle(reserved, 100_000, 10_000) == pytest.approx(0.3)
    assert budget.settle(budget.reserve(100_000, 0)) == 0
    assert budget.cost == pytest.approx(0.3)
    assert budget.requests == 2


@given(st.lists(st.tuples(st.integers(0, 1_000), st.floats(0, 1)), max_size=30))
def test_what_is_spent_never_exceeds_the_bound(requests: list[tuple[int, float]]) -> None:
    budget = JudgeBudget(max_cost=0.002, prompt_price_per_million=1.0, completion_price_per_million=1.0)
    for tokens, share in requests:
        try:
            reserved = budget.reserve(tokens, tokens)
        except JudgeFailedError:
            continue
        budget.settle(reserved, int(tokens * share), int(tokens * share))
        assert -1e-12 <= budget.cost <= 0.002 + 1e-12


def test_threads_cannot_overspend_together() -> None:
    budget = JudgeBudget(max_requests=50)

    def one(_: int) -> bool:
        try:
            budget.reserve(10**12, 10**12)
        except JudgeFailedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(200))) == 50
    assert budget.cost == 0, "without prices"
