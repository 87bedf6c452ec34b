"""What counts as an answer, and what does not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging import Score
from art_gym.wrappers.judging.prompt import AnswerFormatError, read_answer

LABELS = ("kfd", "whm")
GOOD = '{"scores": [{"id": "whm", "explanation": "w", "score": 1}, {"id": "kfd", "score": 0.25}]}'
SCORES = {"kfd": Score(0.25), "whm": Score(1.0, "w")}


def entries(*pairs: tuple[Any, Any]) -> str:
    return json.dumps({"scores": [{"id": label, "score": score} for label, score in pairs]})


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"Here you are:\n```json\n{GOOD}\n```\nI hope [1] that {{helps}}.",
        f"<think>maybe {entries(('kfd', 1), ('whm', 0))}</think>{GOOD}",
        f"hidden beginning {entries(('kfd', 1), ('whm', 0))}</think>\n{GOOD}",
        f"{GOOD}\n{GOOD}",
        GOOD.removeprefix('{"scores": ').removesuffix("}"),
        GOOD.removesuffix("}"),
        GOOD.replace('"kfd"', '" kfd "'),
        f"{entries(('attempt 9', 1))} says the attempt; I say {GOOD}",
    ],
)
def test_scores_are_found_by_id(text: str) -> None:
    assert read_answer(text, LABELS) == SCORES


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("[]", 'key "scores"'),
        ('{"scores": {"kfd": 1, "whm": 0}}', "not a list"),
        (entries(("kfd", 0.5)), "no score for whm"),
        (entries(("kfd", 0.5), ("whm", 0.5), ("kfd", 0.6)), "kfd is scored twice"),
        (entries(("kfd", 0.5), ("whn", 0.5)), "did you mean `whm`"),
        (entries(("kfd", 0.5), (1, 0.5)), 'no "id"'),
        *(
            (entries(("kfd", score), ("whm", 0.5)), f"not {shown}")
            for score, shown in [
                (7.5, "7.5"), (-0.01, "-0.01"), ("0.5", "'0.5'"), (True, "True"), (None, "None"),
                (float("nan"), "NaN"), (float("inf"), "Infinity"), (10**400, "1000"),
            ]
        ),
        (GOOD.replace("0.25", "1e999"), "not inf"),
        (GOOD.replace("0.25", "9" * 5000), 'key "scores"'),
        ('{"scores": [{"id": "kfd", "score": 0.1, "score": 0.9}]}', "'score' twice"),
        ('{"scores": [], "scores": []}', "'scores' twice"),
        ('{"scores": [{"id": "kfd"}]}', 'kfd has no "score"'),
        (GOOD[:70], 'key "scores"'),
        (GOOD + entries(("kfd", 1), ("whm", 0)), "2 different lists of scores"),
        (f"<think>{GOOD}", 'key "scores"'),
        (f"<think>{GOOD}</think>", 'key "scores"'),
        (f'{{"answer": {GOOD}}}', 'key "scores"'),
        (" " * 200_001 + GOOD, "characters"),
    ],
)  # fmt: skip
def test_anything_else_is_a_problem(text: str, problem: str) -> None:
    with pytest.raises(AnswerFormatError) as caught:
        read_answer(text, LABELS)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 300


def test_parts_are_read_if_there_are_criteria() -> None:
    entry = {"id": "kfd", "score": 0.5, "parts": {"speed": 1, "style": 0.5}}
    text = json.dumps({"scores": [entry]})
    assert read_answer(text, ["kfd"], ["style", "speed"])["kfd"].parts == {"style": 0.5, "speed": 1.0}
    assert read_answer(text, ["kfd"])["kfd"].parts == {}
    without = json.dumps({"scores": [entry | {"parts": None}]})
    assert read_answer(without, ["kfd"], ["style"])["kfd"].parts == {}
    for parts, problem in [([1], "neither"), ({"stile": 1}, "mean `style`"), ({"style": 2}, "style of kfd")]:
        with pytest.raises(AnswerFormatError, match=problem):
            read_answer(json.dumps({"scores": [entry | {"parts": parts}]}), ["kfd"], ["style"])


def test_an_explanation_is_printable_text() -> None:
    odd = GOOD.replace('"w"', '" \\ud800 "').replace('"score": 0.25', '"score": 0.25, "explanation": 3')
    found = read_answer(odd, LABELS)
    assert (found["whm"].explanation, found["kfd"].explanation) == ("\\ud800", "")


@pytest.mark.parametrize("text", ["[" * 199_000, '{"a":"' * 30_000, "{" * 199_000, '[{"a":1,' * 20_000])
def test_hostile_text_is_read_in_bounded_time(text: str) -> None:
    with pytest.raises(AnswerFormatError):
        read_answer(text, LABELS)


def test_an_answer_copied_from_an_earlier_question_is_refused() -> None:
    with pytest.raises(AnswerFormatError):
        read_answer(entries(("bcd", 1.0), ("fgh", 1.0)), LABELS)


@given(st.text(max_size=60))
def test_no_text_gives_a_score_by_accident(text: str) -> None:
    with pytest.raises(AnswerFormatError):
        read_answer(text, LABELS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from([*LABELS, "0.5"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "score", "scores", "parts"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_JSON, _JSON)
def test_what_is_read_is_one_number_from_0_to_1_for_each_id(first: Any, second: Any) -> None:
    text = json.dumps({"scores": [{"id": "kfd", "score": first}, {"id": "whm", "score": second}]})
    proper = all(
        isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1
        for score in (first, second)
    )
    try:
        found = read_answer(text, LABELS)
    except AnswerFormatError:
        assert not proper
    else:
        assert {label: score.value for label, score in found.items()} == {"kfd": first, "whm": second}
