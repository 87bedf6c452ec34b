"""Judges made of judges."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from art_gym.wrappers.judging import Attempt, JudgeFailedError, Rubric, Score
from art_gym.wrappers.judging.ensembles import EnsembleJudge, PairwiseJudge, PositionBias, position_bias
from tests.wrappers.judge_doubles import ByQuality
from tests.wrappers.judging.judge_server import (
    GROUP,
    VALUES,
    Bench,
    Reply,
    Request,
    answer_json,
    attempt,
    marker,
    says,
    shown,
    values,
)


def failing(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
    raise JudgeFailedError("timeout", "nobody there")


def scores_one(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
    return {group[0].id: Score(1.0)}


LOW, HIGH = ByQuality(lambda place: -0.1), ByQuality(lambda place: 0.1)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_members_are_averaged_and_their_disagreement_is_reported() -> None:
    score = EnsembleJudge([LOW, HIGH, HIGH])(GROUP)["a"]
    assert score.value == pytest.approx(1 / 3)
    assert score.members == pytest.approx((0.2, 0.4, 0.4))
    assert score.disagreement == pytest.approx(np.std([0.2, 0.4, 0.4]))
    assert score.explanation.count("place 0") == 3
    assert EnsembleJudge([LOW, HIGH, HIGH], aggregate="median")(GROUP)["a"].value == pytest.approx(0.4)
    assert {score.disagreement for score in EnsembleJudge(ByQuality())(GROUP).values()} == {0.0}


def test_parts_are_averaged_if_every_member_has_them() -> None:
    def other(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        return {one.id: Score(0.5, parts={"x": 1.0}) for one in group}

    assert EnsembleJudge([ByQuality(), other])(GROUP)["a"].parts == {"x": 0.75}


def test_members_that_fail_are_left_out_for_all_attempts() -> None:
    scores = EnsembleJudge([failing, ByQuality(), scores_one])(GROUP)
    assert {id_: score.members for id_, score in scores.items()} == {k: (v,) for k, v in VALUES.items()}
    with pytest.raises(JudgeFailedError, match="nobody there") as caught:
        EnsembleJudge([failing, ByQuality()], minimum=2)(GROUP)
    assert caught.value.reason == "timeout"


def test_members_are_asked_at_the_same_time() -> None:
    meet = threading.Barrier(3, timeout=60)

    def patient(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        meet.wait()
        return {one.id: Score(0.5) for one in group}

    assert values(EnsembleJudge([patient] * 3)) == {"a": 0.5, "b": 0.5, "c": 0.5}


def test_the_rubric_goes_to_every_member() -> None:
    rubric, judge = Rubric.of({"x": 1.0}), ByQuality()
    for made in (EnsembleJudge([judge, judge]), PairwiseJudge(judge)):
        made(GROUP, rubric)
    assert set(map(id, judge.rubrics)) == {id(rubric)}


def test_the_share_of_wins_is_the_score() -> None:
    judge = ByQuality()
    found = values(PairwiseJudge(judge), [*GROUP, attempt("d", 0.9, "other words")])
    assert found == pytest.approx({"a": 0.0, "b": 2.5 / 3, "c": 1 / 3, "d": 2.5 / 3})
    assert len(judge.rubrics) == 12


def test_a_judge_that_prefers_a_place_gives_a_draw() -> None:
    biased = PairwiseJudge(ByQuality(lambda place: 0.5 * (place == 0)))
    assert values(biased, [attempt("a", 0.1), attempt("b", 0.2)]) == {"a": 0.5, "b": 0.5}
    assert values(biased, [attempt("a", 0.1), attempt("b", 0.9)]) == {"a": 0.0, "b": 1.0}


def test_a_group_without_a_rival_is_in_the_middle_and_a_failed_pair_fails_the_group() -> None:
    assert values(PairwiseJudge(failing), [GROUP[0], replace(GROUP[0], id="twin")]) == {"a": 0.5, "twin": 0.5}
    with pytest.raises(JudgeFailedError, match="nobody there"):
        PairwiseJudge(failing)(GROUP)


def test_a_known_bias_is_measured() -> None:
    assert position_bias(ByQuality(), GROUP, orders=6, rng=rng()) == PositionBias(6, (0.0, 0.0, 0.0), 0.0)
    moved = ByQuality(lambda place: -0.05 * place)
    bias = position_bias(moved, GROUP, orders=9, rng=rng())
    assert bias.by_position == pytest.approx((0.05, 0.0, -0.05))
    assert bias.spread == pytest.approx(np.std([0, 0.05, 0.1]))
    bias = position_bias(moved, [attempt("a", 0.50), attempt("b", 0.51)], orders=2, rng=rng())
    assert math.fsum(bias.by_position) == pytest.approx(0)


def second_place_is_better(number: int, request: Request) -> Reply:
    texts = shown(request)
    return says(answer_json({k: marker(texts[k]) + 0.1 * place for place, k in enumerate(texts)}))


def test_shuffles_average_a_models_bias_away(bench: Bench) -> None:
    judge = bench.judge(second_place_is_better)
    pair = [attempt("a", 0.4), attempt("b", 0.4, "other words")]
    once = values(judge, pair)
    assert abs(once["a"] - once["b"]) == pytest.approx(0.1)
    scores = EnsembleJudge(judge, shuffles=16)(pair)
    assert len(bench.requests) == 17
    assert abs(scores["a"].value - scores["b"].value) < 0.06
    assert 0.03 < scores["a"].disagreement <= 0.05
    assert values(PairwiseJudge(judge), pair) == {"a": 0.5, "b": 0.5}
    for one in (judge, EnsembleJudge(judge, shuffles=2)):
        bias = position_bias(one, pair, orders=2, rng=rng())
        assert bias.by_position == pytest.approx((-0.05, 0.05))
