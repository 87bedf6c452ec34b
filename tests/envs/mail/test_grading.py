import tomllib
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.envs.mail.grading import MAX_WORDS, matches, says_nothing_found

_MONTHS = "January February March April May June July August September October November December".split()
_TYPES = ("person", "date", "time", "amount", "number", "place", "text", None)

_NAMES = ["Holt", "Meyer", "Baker Street", "Leipzig", "Madrid", "Rome", "New York City"]
_BETWEEN = [
    " ",
    " is ",
    " in ",
    " from the ",
    ", ",
    " or ",
    " und ",
    "; ",
    " of sales ",
    " was there. ",
    "/",
    "\n",
]

ANSWERS = tomllib.loads(Path(__file__).with_name("grading.toml").read_text("utf-8"))


@pytest.mark.parametrize("right", [True, False])
def test_usual_forms_of_the_right_value_count_and_several_values_do_not(right: bool) -> None:
    for answer, gold, answer_type, *question in ANSWERS["right" if right else "wrong"]:
        assert matches(answer, ["something else 99", gold], answer_type, *question) == right, (answer, gold)


def test_reciting_a_mail_is_no_answer() -> None:
    recital = "word " * MAX_WORDS + "1250 EUR"
    assert not matches(recital, ["1250 EUR"], "amount")
    assert not matches("x" * 2000 + " 1250 EUR", ["1250 EUR"], "amount")
    assert matches("word " * 5 + "1250 EUR", ["1250 EUR"], "amount")


def test_a_long_gold_answer_allows_a_long_answer() -> None:
    gold = "Yes, " + "they were found in every hour of the day " * 5
    assert matches(gold, [gold], "text")
    assert not matches(gold * 4, [gold], "text")


@pytest.mark.parametrize("nothing", [True, False])
def test_saying_that_nothing_was_found(nothing: bool) -> None:
    for row in ANSWERS["nothing" if nothing else "something"]:
        assert says_nothing_found(*row) == nothing, row
    assert not says_nothing_found("nothing " + "at all " * 20)


@given(
    st.text(max_size=400) | st.text(alphabet="0123456789.,:/- €kapmhEUR;\n", max_size=80),
    st.text(max_size=60) | st.just("12"),
    st.sampled_from(_TYPES),
)
def test_no_answer_raises(answer: str, gold: str, answer_type: str | None) -> None:
    assert matches(answer, [gold], answer_type) in (True, False)
    assert says_nothing_found(answer) in (True, False)


@given(st.integers(1, 5_000_000), st.integers(0, 5))
def test_an_amount_matches_in_every_form_and_its_neighbours_do_not(value: int, form: int) -> None:
    point = f"{value:,}".replace(",", ".")
    forms = (
        f"{value} EUR",
        f"€{value:,}",
        f"{value:,}.00 euros",
        f"EUR {point},00",
        f"{point} €",
        f"{value}",
    )
    assert matches(forms[form], [f"{value} EUR"], "amount")
    assert not matches(forms[form], [f"{value + 1} EUR"], "amount")
    assert not matches(forms[form], [f"{value * 10} EUR"], "amount")


@given(st.dates(date(1990, 1, 1), date(2040, 1, 1)), st.integers(0, 5), st.integers(1, 4000))
def test_a_date_matches_in_every_form_and_other_days_do_not(day: date, form: int, shift: int) -> None:
    month = _MONTHS[day.month - 1]
    forms = (
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        day.isoformat(),
        f"{day.day:02d}.{day.month:02d}.{day.year}",
        f"{month[:3]} {day.day} {day.year}",
        f"the {day.day}th of {month} {day.year}",
    )
    assert matches(forms[form], [day.isoformat()], "date")
    assert matches(forms[form], [forms[0]], "date")
    assert not matches(forms[form], [(day + timedelta(days=shift)).isoformat()], "date")


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 3), st.integers(1, 1439))
def test_a_time_matches_in_every_form_and_others_do_not(
    hour: int, minute: int, form: int, shift: int
) -> None:
    half = "pm" if hour >= 12 else "am"
    twelve = f"{(hour - 1) % 12 + 1}:{minute:02d}"
    forms = (f"{hour:02d}:{minute:02d}", f"{hour}:{minute:02d}", f"{twelve} {half}", f"at {twelve}{half}")
    assert matches(forms[form], [forms[0]], "time")
    other = (hour * 60 + minute + shift) % 1440
    assert not matches(forms[form], [f"{other // 60:02d}:{other % 60:02d}"], "time")


@given(
    st.lists(st.sampled_from(_NAMES), min_size=2, max_size=5, unique=True),
    st.lists(st.sampled_from(_BETWEEN), min_size=5, max_size=5),
    st.lists(st.sampled_from([str.lower, str.upper, str.title]), min_size=5, max_size=5),
    st.sampled_from(["", "Who?", "Is it Holt or Leipzig?", "Who came from Madrid to Rome for the sales?"]),
    st.sampled_from(["person", "place", "text"]),
)
def test_a_list_is_right_for_one_name_at_most(
    names: list[str], between: list[str], cases: list[Callable[[str], str]], question: str, kind: str
) -> None:
    answer = "".join(
        word for name, case, join in zip(names, cases, between, strict=False) for word in (case(name), join)
    )
    assert sum(matches(answer, [name], kind, question) for name in _NAMES) <= 1
