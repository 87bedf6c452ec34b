"""Groups longer than a question: what is cut, what is shown together, and on which scale."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, JudgeFailed, Score, Step
from art_gym.wrappers.judging.llm_blocks import Layout, anchors_of, lay_out, on_scale
from art_gym.wrappers.judging.llm_material import Material, read_group
from art_gym.wrappers.judging.llm_text import estimated_tokens
from tests.wrappers.judge_server import attempt


def material(*lengths: int, task: str = "Find it.", tools: int = 0) -> Material:
    """Attempts of about so many tokens each."""
    tool = ({"name": "t" * 3 * tools},) if tools else ()
    return read_group(
        [
            Attempt(str(number), task, (Step(f"{number}" + "x" * 3 * length, "over"),), tool)
            for number, length in enumerate(lengths)
        ]
    )


def blocks_of(layout: Layout, anchors: int) -> list[list[int]]:
    blocks = [layout.block(range(len(layout.attempts)))]
    kept = blocks[0][:anchors]
    while waiting := [p for p in range(len(layout.attempts)) if not any(p in block for block in blocks)]:
        blocks.append(layout.block(waiting, kept))
    return blocks


def test_what_fits_is_shown_whole_and_together() -> None:
    layout = lay_out(material(100, 200, 300), 2_000, 40)
    assert layout.block(range(3)) == [0, 1, 2]
    assert not any("left out" in text for text in layout.attempts)


def test_a_long_group_is_shown_in_blocks_around_the_anchors() -> None:
    layout = lay_out(material(*[100] * 20), 1_000, 40)
    assert not any("left out" in text for text in layout.attempts)
    blocks = blocks_of(layout, 2)
    assert len(blocks) > 2
    assert all(set(blocks[0][:2]) <= set(block) for block in blocks)
    assert sorted({place for block in blocks for place in block}) == list(range(20))


def test_a_question_holds_no_more_attempts_than_an_answer_has_room_for() -> None:
    layout = lay_out(material(*[5] * 30), 100_000, 10)
    assert [len(block) for block in blocks_of(layout, 2)] == [10, 10, 10, 6]
    assert lay_out(material(5, 5, 5, 5), 10_000, 1).most == 3, "two anchors and one more"


def test_only_long_attempts_are_cut() -> None:
    layout = lay_out(material(50, 5_000, 50, 5_000), 3_000, 40)
    cut = ["left out" in text for text in layout.attempts]
    assert sorted(cut) == [False, False, True, True]
    assert layout.block(range(4)) == [0, 1, 2, 3]


def test_what_all_share_takes_at_most_half() -> None:
    layout = lay_out(material(50, 60, task="t" * 30_000, tools=5_000), 3_000, 40)
    assert [name for name, _ in layout.shared] == ["task", "tools"]
    assert all("left out" in text for _, text in layout.shared)
    assert sum(estimated_tokens(text) for _, text in layout.shared) < 1_600
    assert not any("left out" in text for text in layout.attempts)


@pytest.mark.parametrize("room", [-5, 0, 200, 400])
def test_too_little_room_is_a_failure_in_words(room: int) -> None:
    with pytest.raises(JudgeFailed, match="raise max_context_tokens") as caught:
        lay_out(material(500, 500, 500), room, 40)
    assert caught.value.reason == "too_long"


@settings(deadline=None)
@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=12), st.integers(900, 6_000), st.integers(1, 8))
def test_every_question_fits_and_every_attempt_gets_its_turn(sizes: list[int], room: int, most: int) -> None:
    layout = lay_out(material(*sizes), room, most)
    assert layout.longest <= room
    blocks = blocks_of(layout, 2)
    for block in blocks:
        shared = sum(estimated_tokens(text) for _, text in layout.shared)
        assert shared + sum(estimated_tokens(layout.attempts[place]) for place in block) <= room
        assert len(block) <= max(most, 3)
    new = [set(block) - set().union(*blocks[:number]) for number, block in enumerate(blocks)]
    assert all(new)
    assert set().union(*blocks) == set(range(len(layout.attempts)))


def scores(**values: float) -> dict[int, Score]:
    return {int(place.removeprefix("p")): Score(value) for place, value in values.items()}


def test_anchors_are_the_best_and_the_worst() -> None:
    assert anchors_of(scores(p0=0.5, p1=0.9, p2=0.1)) == (1, 2)
    assert anchors_of(scores(p0=0.5, p1=0.5)) == (1, 0)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=8),
    st.floats(0.6, 1.0),
    st.floats(0.0, 0.4),
)
def test_a_block_judged_on_another_scale_comes_back_to_the_first(
    true: list[float], slope: float, shift: float
) -> None:
    true = [*true, 1.0, 0.0]
    anchors = (len(true) - 2, len(true) - 1)
    first = {place: Score(true[place]) for place in (0, *anchors)}
    later = [*anchors, *range(1, len(true) - 2)]
    shown = {place: Score(slope * true[place] + shift * (1 - slope)) for place in later}
    found = on_scale(shown, first)
    assert set(found) == set(range(1, len(true) - 2))
    for place, score in found.items():
        assert score.value == pytest.approx(true[place], abs=1e-9)


def test_anchors_that_lie_close_shift_and_do_not_stretch() -> None:
    first = scores(p0=0.4, p1=0.6)
    found = on_scale(scores(p0=0.70, p1=0.72, p2=0.9), first)
    assert found[2].value == pytest.approx(0.9 - 0.71 + 0.5)


def test_noise_cannot_turn_or_blow_up_a_block() -> None:
    first = scores(p0=0.0, p1=1.0)
    turned = on_scale(scores(p0=0.8, p1=0.2, p2=0.4, p3=0.6), first)
    assert turned[2].value < turned[3].value
    blown = on_scale(scores(p0=0.4, p1=0.6, p2=0.1, p3=0.95, p4=0.55), first)
    assert [blown[place].value for place in (2, 3)] == [0.0, 1.0]
    assert blown[4].value == pytest.approx(0.6), "stretched twofold and not fivefold"


def test_parts_are_put_on_their_own_scale_where_the_anchors_have_them() -> None:
    first = {0: Score(0.0, "", {"a": 0.0, "b": 0.3}), 1: Score(1.0, "", {"a": 1.0})}
    later = {place: Score(value, "w", {"a": value, "b": 0.5}) for place, value in enumerate([0.2, 0.7, 0.45])}
    (found,) = on_scale(later, first).values()
    assert found.explanation == "w"
    assert dict(found.parts) == {"a": pytest.approx(0.5)}


def test_attempts_that_read_the_same_are_one() -> None:
    group = [attempt("a", 0.1), attempt("b", 0.2), attempt("c", 0.1), attempt("d", 0.1, ending="truncated")]
    read = read_group(group)
    assert sorted(read.ids) == [("a", "c"), ("b",), ("d",)]
    assert read_group(group, keep_order=True).ids == (("a", "c"), ("b",), ("d",))
    assert read_group(group[:1]).shared == ()


def test_shared_steps_are_whole_steps() -> None:
    same, reply = Step("look()", "a door"), "open()"
    one = Attempt("a", "t", (same, Step(reply, "it creaks")))
    two = Attempt("b", "t", (same, Step(reply, "it is locked")))
    read = read_group([one, two])
    assert [section.text for section in read.shared] == ["look()", "a door"]
    assert {attempt[0].text for attempt in read.attempts} == {"open()"}
