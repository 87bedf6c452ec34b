"""Groups longer than a question: what is cut, what is shown together, and on which scale."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, JudgeFailedError, Score, Step
from art_gym.wrappers.judging.llm_judge import Batches, anchors_of, on_scale, plan_batches
from art_gym.wrappers.judging.prompt import GroupDigest, digest_group, estimated_tokens


def material(*lengths: int, task: str = "Find it.", tools: int = 0) -> GroupDigest:
    """Attempts of about so many tokens each."""
    tool = ({"name": "t" * 3 * tools},) if tools else ()
    return digest_group(
        [
            Attempt(str(number), task, (Step(f"{number}" + "x" * 3 * length, "over"),), tool)
            for number, length in enumerate(lengths)
        ]
    )


def all_batches(batches: Batches) -> list[list[int]]:
    found = [batches.batch(range(len(batches.attempts)))]
    anchors = found[0][:2]
    while waiting := [p for p in range(len(batches.attempts)) if not any(p in batch for batch in found)]:
        found.append(batches.batch(waiting, anchors))
    return found


def test_what_all_share_takes_at_most_half_and_only_long_attempts_are_cut() -> None:
    batches = plan_batches(material(50, 60, task="t" * 30_000, tools=5_000), 3_000, 40)
    assert [name for name, _ in batches.shared] == ["task", "tools"]
    assert all("left out" in text for _, text in batches.shared)
    assert sum(estimated_tokens(text) for _, text in batches.shared) < 1_600
    assert not any("left out" in text for text in batches.attempts)
    batches = plan_batches(material(50, 5_000, 50, 5_000), 3_000, 40)
    assert sorted("left out" in text for text in batches.attempts) == [False, False, True, True]
    assert batches.batch(range(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("room", [-5, 0, 200, 400])
def test_too_little_room_is_a_failure(room: int) -> None:
    with pytest.raises(JudgeFailedError, match="raise max_context_tokens") as caught:
        plan_batches(material(500, 500, 500), room, 40)
    assert caught.value.reason == "too_long"


@settings(deadline=None)
@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=12), st.integers(900, 6_000), st.integers(1, 8))
def test_every_question_fits_and_every_attempt_gets_its_turn(sizes: list[int], room: int, most: int) -> None:
    batches = plan_batches(material(*sizes), room, most)
    assert batches.longest <= room
    found = all_batches(batches)
    for number, batch in enumerate(found):
        shared = sum(estimated_tokens(text) for _, text in batches.shared)
        assert shared + sum(estimated_tokens(batches.attempts[place]) for place in batch) <= room
        assert len(batch) <= max(most, 3)
        assert set(found[0][:2]) <= set(batch)
        assert set(batch) - set().union(*found[:number])
    assert set().union(*found) == set(range(len(batches.attempts)))


def scores(*values: float) -> dict[int, Score]:
    return dict(enumerate(map(Score, values)))


def test_anchors_are_the_best_and_the_worst() -> None:
    assert anchors_of(scores(0.5, 0.9, 0.1)) == (1, 2)
    assert anchors_of(scores(0.5, 0.5)) == (1, 0)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=8), st.floats(0.6, 1.0), st.floats(0.0, 0.4))
def test_a_batch_judged_on_another_scale_comes_back_to_the_first(
    true: list[float], slope: float, shift: float
) -> None:
    true = [1.0, 0.0, *true]
    later = {place: Score(slope * value + shift * (1 - slope)) for place, value in enumerate(true)}
    found = on_scale(later, scores(1.0, 0.0))
    assert {place: score.value for place, score in found.items()} == pytest.approx(
        {place: value for place, value in enumerate(true) if place > 1}, abs=1e-9
    )


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        ((0.4, 0.6), (0.70, 0.72, 0.9), [0.9 - 0.71 + 0.5]),
        ((0.0, 1.0), (0.4, 0.6, 0.1, 0.95, 0.55), [0.0, 1.0, 0.6]),
        ((0.0, 1.0), (0.8, 0.2, 0.4, 0.6), [0.45, 0.55]),
    ],
    ids=["close anchors shift and do not stretch", "stretched twofold and not fivefold", "never turned"],
)
def test_noise_cannot_turn_or_blow_up_a_batch(
    first: tuple[float, ...], later: tuple[float, ...], expected: list[float]
) -> None:
    found = on_scale(scores(*later), scores(*first))
    assert [score.value for score in found.values()] == pytest.approx(expected)


def test_parts_are_put_on_their_own_scale_if_the_anchors_have_them() -> None:
    first = {0: Score(0.0, "", {"a": 0.0, "b": 0.3}), 1: Score(1.0, "", {"a": 1.0})}
    later = {place: Score(value, "w", {"a": value, "b": 0.5}) for place, value in enumerate([0.2, 0.7, 0.45])}
    (found,) = on_scale(later, first).values()
    assert found.explanation == "w"
    assert dict(found.parts) == {"a": pytest.approx(0.5)}
