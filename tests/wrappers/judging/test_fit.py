"""Groups longer than a question: what is cut, and how far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, JudgeFailedError, Step
from art_gym.wrappers.judging.llm_judge import fit
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


def test_what_all_share_takes_at_most_half_and_only_long_attempts_are_cut() -> None:
    shared, attempts = fit(material(50, 60, task="t" * 30_000, tools=5_000), 3_000)
    assert [name for name, _ in shared] == ["task", "tools"]
    assert all("left out" in text for _, text in shared)
    assert sum(estimated_tokens(text) for _, text in shared) < 1_600
    assert not any("left out" in text for text in attempts)
    attempts = fit(material(50, 5_000, 50, 5_000, 1_000), 3_000)[1]
    assert sorted("left out" in text for text in attempts) == [False, False, True, True, True]
    attempts = fit(material(50, 5_000, 50, 5_000, 600), 3_000)[1]
    assert sorted("left out" in text for text in attempts) == [False, False, False, True, True]


@pytest.mark.parametrize("room", [-5, 0, 200, 400])
def test_too_little_room_is_a_failure(room: int) -> None:
    with pytest.raises(JudgeFailedError, match="raise max_context_tokens") as caught:
        fit(material(500, 500, 500), room)
    assert caught.value.reason == "too_long"


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=12), st.integers(3_000, 9_000))
def test_every_question_fits_and_leaves_no_room_if_it_cuts(sizes: list[int], room: int) -> None:
    shared, attempts = fit(material(*sizes), room)
    taken = sum(estimated_tokens(text) + 40 for text in (*attempts, *(text for _, text in shared)))
    assert taken <= room
    if any("left out" in text for text in attempts):
        assert taken > room - 60 * len(sizes)
