"""Judges made of judges."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, JudgeFailed, JudgingError, Rubric, Score, judge_group
from art_gym.wrappers.judging.ensembles import (
    EnsembleJudge,
    EnsembleScore,
    PairwiseJudge,
    PositionBias,
    position_bias,
)
from art_gym.wrappers.judging.llm_judge import LLMJudge
from tests.wrappers.judge_server import JudgeServer, Reply, Request, answer_json, attempt, marker, says, shown

GROUP = [attempt("a", 0.3), attempt("b", 0.9), attempt("c", 0.5)]


class Toy:
    """Scores by content, moved by a function of the place shown and how many are shown."""

    def __init__(self, move: Callable[[int, int], float] = lambda place, count: 0.0) -> None:
        self.move, self.calls, self.rubrics = move, 0, []  # type: ignore[var-annotated]

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        self.calls += 1
        self.rubrics.append(rubric)
        found = {}
        for place, one in enumerate(group):
            value = marker(one.steps[-1].reply) + self.move(place, len(group))
            found[one.id] = Score(
                min(max(value, 0.0), 1.0), f"place {place}", {"x": 0.5, f"only {place}": 1.0}
            )
        return found


class Shuffled(Toy):
    """Says that it can shuffle."""

    seed = 0

    def with_seed(self, seed: int) -> Shuffled:
        return self

    def in_given_order(self) -> Shuffled:
        return self


def failing(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
    raise JudgeFailed("timeout", "nobody there")


def values(scores: Mapping[str, Score]) -> dict[str, float]:
    return {id_: score.value for id_, score in scores.items()}


# Averages


def test_members_are_averaged_and_their_disagreement_is_reported() -> None:
    low, high = Toy(lambda place, count: -0.1), Toy(lambda place, count: 0.1)
    scores = EnsembleJudge([low, high, high])(GROUP)
    assert values(scores) == pytest.approx({"a": 1 / 3, "b": 0.8 / 3 + 2 / 3, "c": 1.6 / 3})
    assert scores["a"].members == pytest.approx((0.2, 0.4, 0.4))
    assert scores["a"].disagreement == pytest.approx(np.std([0.2, 0.4, 0.4]))
    assert scores["a"].explanation.count("place 0") == 3
    assert isinstance(scores["a"], Score)
    assert values(EnsembleJudge([low, high, high], aggregate="median")(GROUP))["a"] == pytest.approx(0.4)


def test_one_member_disagrees_with_nobody() -> None:
    scores = EnsembleJudge(Toy())(GROUP)
    assert {score.disagreement for score in scores.values()} == {0.0}
    assert values(scores) == {"a": 0.3, "b": 0.9, "c": 0.5}


def test_parts_are_averaged_where_every_member_has_them() -> None:
    def other(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        return {one.id: Score(0.5, parts={"x": 1.0}) for one in group}

    assert EnsembleJudge([Toy(), other])(GROUP)["a"].parts == {"x": 0.75}


def test_members_that_fail_are_left_out_for_all_attempts() -> None:
    scores = EnsembleJudge([failing, Toy(), failing])(GROUP)
    assert values(scores) == {"a": 0.3, "b": 0.9, "c": 0.5}
    assert all(len(score.members) == 1 for score in scores.values())
    with pytest.raises(JudgeFailed, match="1 of 2 judges answered, 2 must: timeout: nobody there") as caught:
        EnsembleJudge([failing, Toy()], minimum=2)(GROUP)
    assert caught.value.reason == "timeout"
    with pytest.raises(JudgeFailed):
        EnsembleJudge([failing])(GROUP)


def test_a_member_that_leaves_out_an_attempt_has_failed() -> None:
    def sloppy(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        return {group[0].id: Score(1.0)}

    assert values(EnsembleJudge([sloppy, Toy()])(GROUP)) == {"a": 0.3, "b": 0.9, "c": 0.5}


def test_members_are_asked_at_the_same_time() -> None:
    meet = threading.Barrier(3, timeout=60)

    def patient(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        meet.wait()
        return {one.id: Score(0.5) for one in group}

    assert values(EnsembleJudge([patient] * 3)(GROUP)) == {"a": 0.5, "b": 0.5, "c": 0.5}


def test_the_rubric_goes_to_every_member() -> None:
    rubric, judge = Rubric.of({"x": 1.0}), Toy()
    EnsembleJudge([judge, judge])(GROUP, rubric)
    PairwiseJudge(judge)(GROUP, rubric)
    assert set(map(id, judge.rubrics)) == {id(rubric)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EnsembleJudge([]), "at least one judge"),
        (lambda: EnsembleJudge(Toy(), minimum=2), "minimum is from 1 to the 1"),
        (lambda: EnsembleJudge(Toy(), minimum=0), "minimum"),
        (lambda: EnsembleJudge(Toy(), aggregate="meen"), "did you mean `mean`"),  # type: ignore[arg-type]
        (lambda: EnsembleJudge(Toy(), shuffles=3), "with_seed"),
        (lambda: EnsembleJudge([Toy(), Toy()], shuffles=3), "one judge"),
        (lambda: EnsembleJudge(Shuffled(), shuffles=0), "shuffles is at least 1"),
        (lambda: position_bias(Toy(), GROUP, orders=1, rng=np.random.default_rng(0)), "two orders"),
        (lambda: position_bias(Toy(), GROUP[:1], orders=3, rng=np.random.default_rng(0)), "different"),
    ],
)
def test_nonsense_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(JudgingError, match=words):
        make()


# Pairs


def test_the_share_of_wins_is_the_score() -> None:
    judge = Toy()
    scores = PairwiseJudge(judge)([*GROUP, attempt("d", 0.9, "other words")])
    assert values(scores) == pytest.approx({"a": 0.0, "b": 2.5 / 3, "c": 1 / 3, "d": 2.5 / 3})
    assert scores["b"].explanation == "won 2.5 of 3 comparisons"
    assert judge.calls == 12


def test_a_judge_that_prefers_a_place_gives_a_draw() -> None:
    blind = Toy(lambda place, count: 0.5 * (place == 0))
    assert values(PairwiseJudge(blind)([attempt("a", 0.1), attempt("b", 0.2)])) == {"a": 0.5, "b": 0.5}
    clear = [attempt("a", 0.1), attempt("b", 0.9)]
    assert values(PairwiseJudge(blind)(clear)) == {"a": 0.0, "b": 1.0}


def test_a_group_without_a_rival_is_in_the_middle() -> None:
    judge = Toy()
    scores = PairwiseJudge(judge)([GROUP[0], replace(GROUP[0], id="twin")])
    assert values(scores) == {"a": 0.5, "twin": 0.5}
    assert judge.calls == 0


def test_a_pair_without_an_answer_fails_the_group() -> None:
    with pytest.raises(JudgeFailed, match="nobody there"):
        PairwiseJudge(failing)(GROUP)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=1, max_size=5), st.randoms())
def test_order_names_and_twins_change_nothing(qualities: list[float], random: Any) -> None:
    group = [attempt(str(number), quality) for number, quality in enumerate(qualities)]
    judge = PairwiseJudge(Toy(lambda place, count: 0.15 * place))
    before = values(judge_group(judge, group))
    changed = [replace(one, id=f"x{one.id}") for one in [*group, replace(random.choice(group), id="twin")]]
    random.shuffle(changed)
    after = values(judge_group(judge, changed))
    assert {id_: after[f"x{id_}"] for id_ in before} == before


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 100), min_size=2, max_size=6, unique=True))
def test_wins_order_attempts_as_the_likeliest_strengths_do(qualities: list[int]) -> None:
    """Bradley–Terry strengths for the same wins, and half a win more each way, so that they are finite."""
    group = [attempt(str(number), quality / 100) for number, quality in enumerate(qualities)]
    found = values(PairwiseJudge(Toy())(group))
    count = len(qualities)
    wins = np.array([[0.5 + (a > b) for b in qualities] for a in qualities])
    strength = np.ones(count)
    for _ in range(200):  # Hunter 2004, Annals of Statistics 32, 384: minorisation and maximisation
        games = (wins + wins.T) / (strength[:, None] + strength[None, :])
        np.fill_diagonal(games, 0)
        strength = (wins.sum(axis=1) - wins.diagonal()) / games.sum(axis=1)
        strength /= np.exp(np.log(strength).mean())
    ranked = sorted(range(count), key=lambda number: found[str(number)])
    assert all(strength[low] < strength[high] for low, high in itertools.pairwise(ranked))


# The order shown


def test_a_judge_that_does_not_mind_the_order_has_no_bias() -> None:
    bias = position_bias(Toy(), GROUP, orders=6, rng=np.random.default_rng(0))
    assert bias == PositionBias(6, (0.0, 0.0, 0.0), 0.0, 0.0)


def test_a_known_bias_is_measured() -> None:
    moved = Toy(lambda place, count: -0.05 * place)
    bias = position_bias(moved, GROUP, orders=9, rng=np.random.default_rng(0))
    assert bias.by_position == pytest.approx((0.05, 0.0, -0.05))
    assert bias.spread == pytest.approx(np.std([0, 0.05, 0.1]))
    assert bias.flips == 0, "the gaps of 0.2 and 0.4 are wider than the bias"
    close = [attempt("a", 0.50), attempt("b", 0.51)]
    bias = position_bias(moved, close, orders=2, rng=np.random.default_rng(0))
    assert bias.flips == 1
    assert math.fsum(bias.by_position) == pytest.approx(0)


# With a model


def second_place_is_better(number: int, request: Request) -> Reply:
    texts = shown(request)
    return says(answer_json({k: marker(texts[k]) + 0.1 * place for place, k in enumerate(texts)}))


def test_shuffles_average_a_models_bias_away() -> None:
    server = JudgeServer(second_place_is_better)
    with LLMJudge("m", server.url) as judge:
        pair = [attempt("a", 0.4), attempt("b", 0.4, "other words")]
        once = values(judge(pair))
        assert abs(once["a"] - once["b"]) == pytest.approx(0.1)
        scores = EnsembleJudge(judge, shuffles=16)(pair)
        assert len(server.requests) == 17
        assert abs(scores["a"].value - scores["b"].value) < 0.06
        assert isinstance(scores["a"], EnsembleScore)
        assert 0.03 < scores["a"].disagreement <= 0.05
        assert values(PairwiseJudge(judge)(pair)) == {"a": 0.5, "b": 0.5}
        ensemble = EnsembleJudge(judge, shuffles=2)
        for one in (judge, ensemble):
            bias = position_bias(one, pair, orders=2, rng=np.random.default_rng(0))
            assert bias.by_position == pytest.approx((-0.05, 0.05))
    server.close()
