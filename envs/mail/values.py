"""Read values out of free text: amounts, numbers, dates and times in any usual form.

Each reader returns every value in the text, so that a grader notices two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"  # noqa: E501
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<![\d.,/-]){_YEAR}-(?P<month>\d{{1,2}})-(?P<day>\d{{1,2}})(?!\d)",
        rf"(?<![\d.,/-]){_YEAR}/(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}})(?!\d)",
        rf"(?<![\d.,/-])(?P<day>\d{{1,2}})\.\s?(?P<month>\d{{1,2}})\.\s?{_YEAR}(?!\d)",
        rf"(?<![\d.,/-])(?P<day>\d{{1,2}})[/-](?P<month>\d{{1,2}})[/-]{_YEAR}(?!\d)",
        rf"(?<![\d.,]){_DAY}\.?\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR}(?!\d))?",
        rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}(?![\d:])(?:(?:,\s*|\s+){_YEAR}(?!\d))?",
    )
)
_EITHER_ORDER = 3
"""The pattern above whose first two numbers may be day and month or month and day."""

_CLOCK = re.compile(
    r"(?<![\d.,:/-])(?P<hour>\d{1,2})(?:[:h.](?P<minute>\d{2}))?(?::\d{2})?\s*(?P<half>[ap]\.?m\b\.?|o'?clock|h\b|uhr)?(?![\d:])",
    re.IGNORECASE,
)
_NAMED_TIMES = {"noon": 12 * 60, "midday": 12 * 60, "midnight": 0}

_CURRENCIES = {
    "€": "EUR", "eur": "EUR", "euro": "EUR", "euros": "EUR", "$": "USD", "usd": "USD", "dollar": "USD",
    "dollars": "USD", "£": "GBP", "gbp": "GBP", "pound": "GBP", "pounds": "GBP", "chf": "CHF",
    "francs": "CHF",
}  # fmt: skip
_MONEY = r"€|\$|£|\b(?:eur|euros?|usd|dollars?|gbp|pounds?|chf|francs)\b"
_DIGITS = r"\d{1,3}(?:[ '’]\d{3}(?!\d))+(?:[.,]\d+)?|\d[\d.,'’]*"
_SCALES = {"k": 1000, "thousand": 1000, "m": 1_000_000, "million": 1_000_000}
_NUMBER = re.compile(
    rf"(?P<before>{_MONEY})?\s?(?<![\w.,])(?P<digits>{_DIGITS})(?:\s?(?P<scale>k|thousand|million)\b)?(?:,-|\.-)?\s?(?P<after>{_MONEY})?"
)
_SMALL = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen twenty".split()
    )
}
_WORD = re.compile(r"[a-z]+")
_NO_LABEL = frozenset(
    "the a and or to is are was were at on by but then about after before plus st nd rd th".split()
)
_LABEL_BEFORE = re.compile(r"([a-z]+)\s*$")
_LABEL_AFTER = re.compile(r"(?:(?:st|nd|rd|th)\b)?+\s*([a-z]+)")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with the currency written beside it, if any."""

    value: Decimal
    currency: str | None = None
    labelled: bool = False
    """Whether a word beside it says what it numbers, as in ``40 pallets``, ``room 7`` or ``in 2024``."""


def read_dates(text: str) -> tuple[list[frozenset[tuple[int | None, int, int]]], str]:
    """The dates of a text and the text without them.

    A date is the set of its readings (year or None, month, day): ``12/03/2024`` has two, day first and
    month first, and ``31 February`` has none.
    """
    found: list[frozenset[tuple[int | None, int, int]]] = []
    for number, pattern in enumerate(_DATES):
        found.extend(_readings(match, number == _EITHER_ORDER) for match in pattern.finditer(text))
        text = pattern.sub(" ; ", text)
    return found, text


def _readings(match: re.Match[str], either: bool) -> frozenset[tuple[int | None, int, int]]:
    year = int(match["year"]) if match["year"] else None
    day, month = int(match["day"]), _month(match["month"].lower())
    pairs = {(month, day), (day, month)} if either else {(month, day)}
    return frozenset((year, m, d) for m, d in pairs if _is_date(year, m, d))


def _month(text: str) -> int:
    if text.isdigit():
        return int(text)
    return next(number for number, name in enumerate(_MONTHS, 1) if name.startswith(text[:3]))


def _is_date(year: int | None, month: int, day: int) -> bool:
    try:
        date(2000 if year is None else year, month, day)  # 2000: a leap year, so that 29 February passes
    except ValueError:
        return False
    return True


def read_times(text: str) -> tuple[list[int], str]:
    """The times of day of a text, in minutes after midnight, and the text without them."""
    found: list[int] = []

    def take(match: re.Match[str]) -> str:
        hour, minute, half = int(match["hour"]), int(match["minute"] or 0), (match["half"] or "").lower()
        if (match["minute"] is None and not half) or hour > 24 or minute > 59:
            return match[0]
        if half.startswith(("a", "p")):
            if not 1 <= hour <= 12:
                return match[0]
            hour = hour % 12 + (12 if half.startswith("p") else 0)
        found.append((hour * 60 + minute) % (24 * 60))
        return " ; "

    rest = _CLOCK.sub(take, text)
    found.extend(_NAMED_TIMES[word] for word in _WORD.findall(rest.lower()) if word in _NAMED_TIMES)
    return found, rest


def read_numbers(text: str) -> list[Amount]:
    """The numbers of a lower-case text: digits, and number words up to twenty.

    Beside digits, a number word counts if nothing labels it: in ``214 or twelve``, not in ``214, two teams``.
    """
    found = []
    for match in _NUMBER.finditer(text):
        money = match["before"] or match["after"]
        value = _decimal(match["digits"]) * _SCALES.get(match["scale"] or "", 1)
        found.append(Amount(value, _CURRENCIES[money] if money else None, _is_labelled(text, match)))
    words = [match for match in _WORD.finditer(text) if match[0] in _SMALL]
    if found:
        words = [match for match in words if match[0] != "one" and not _is_labelled(text, match)]
    return found + [Amount(Decimal(_SMALL[match[0]])) for match in words]


def _is_labelled(text: str, number: re.Match[str]) -> bool:
    beside = (_LABEL_BEFORE.search(text[: number.start()]), _LABEL_AFTER.match(text, number.end()))
    words = [match[1] for match in beside if match]
    return any(word not in _NO_LABEL and word not in _CURRENCIES for word in words)


def _decimal(digits: str) -> Decimal:
    """``1,250.00``, ``1.250,00``, ``1 250`` and ``1'250`` as numbers.

    With both a point and a comma the later one is the decimal mark. A single kind marks thousands when
    it stands before exactly three digits each time (``1.250`` is 1250), else decimals (``3.5``).
    """
    text = re.sub(r"[ '’]", "", digits).rstrip(".,")
    if "." in text and "," in text:
        mark = max(".,", key=text.rfind)
        text = text.replace("," if mark == "." else ".", "")
        head, _, tail = text.rpartition(mark)
        return Decimal(f"{head.replace(mark, '')}.{tail}")
    for mark in ".,":
        if mark in text:
            parts = text.split(mark)
            thousands = len(parts[0]) <= 3 and parts[0] != "0" and all(len(part) == 3 for part in parts[1:])
            if thousands or len(parts) > 2:
                return Decimal("".join(parts))
            return Decimal(f"{parts[0]}.{parts[1]}")
    return Decimal(text)
