"""Grade answers: compare free text with the accepted forms of a fact, without a language model.

What counts: the value, however it is written (``1,250.00 EUR`` is ``€1250``, ``2:30 pm`` is ``14:30``,
``12 March`` is ``2024-03-12``). What does not: several values at once, or the text of a mail. So
an answer of more than `MAX_WORDS` words is wrong, and so is one that names two amounts, dates, times,
numbers, people or places.

Decisions worth knowing:

* ``12/03/2024`` may be read day first or month first; it is right when either reading is. Points are
  day first.
* A date may leave out its year; a wrong year is wrong.
* A person's full name counts in either order (``Holt, Maria``) and with an initial (``M. Holt``); so
  does the surname alone. The first name alone does not: several people share it.
* An amount without a currency is compared by its number; another currency is wrong.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

# ----------------------------------------------------------------------
# Reading values out of free text: amounts, numbers, dates and times in any usual form.
#
# Each reader returns every value in the text, so that a grader notices two.

_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"  # noqa: E501
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_DATES = (
    re.compile(rf"(?<![\d.,/-]){_YEAR}-(?P<month>\d{{1,2}})-(?P<day>\d{{1,2}})(?!\d)"),
    re.compile(rf"(?<![\d.,/-]){_YEAR}/(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}})(?!\d)"),
    re.compile(rf"(?<![\d.,/-])(?P<day>\d{{1,2}})\.\s?(?P<month>\d{{1,2}})\.\s?{_YEAR}(?!\d)"),
    re.compile(rf"(?<![\d.,/-])(?P<day>\d{{1,2}})[/-](?P<month>\d{{1,2}})[/-]{_YEAR}(?!\d)"),
    re.compile(rf"(?<![\d.,]){_DAY}\.?\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR}(?!\d))?"),
    re.compile(rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}(?![\d:])(?:(?:,\s*|\s+){_YEAR}(?!\d))?"),
)
_EITHER_ORDER = 3
"""The pattern above whose first two numbers may be day and month or month and day."""

_CLOCK = re.compile(
    r"(?<![\d.,:/-])(?P<hour>\d{1,2})(?:[:h.](?P<minute>\d{2}))?(?::\d{2})?\s*(?P<half>[ap]\.?m\b\.?|o'?clock|h\b|uhr)?(?![\d:])"
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


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with the currency written beside it, if any."""

    value: Decimal
    currency: str | None


def read_dates(text: str) -> tuple[list[frozenset[tuple[int | None, int, int]]], str]:
    """The dates of a lower-case text and the text without them.

    A date is the set of its readings (year or None, month, day): ``12/03/2024`` has two, day first and
    month first.
    """
    found: list[frozenset[tuple[int | None, int, int]]] = []
    for number, pattern in enumerate(_DATES):
        for match in pattern.finditer(text):
            readings = _readings(match, number == _EITHER_ORDER)
            if readings:
                found.append(readings)
        text = pattern.sub(" ; ", text)
    return found, text


def _readings(match: re.Match[str], either: bool) -> frozenset[tuple[int | None, int, int]]:
    year = int(match["year"]) if match["year"] else None
    day, month = int(match["day"]), _month(match["month"])
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
    """The times of day of a lower-case text, in minutes after midnight, and the text without them."""
    found: list[int] = []

    def take(match: re.Match[str]) -> str:
        hour, minute, half = int(match["hour"]), int(match["minute"] or 0), match["half"] or ""
        if (match["minute"] is None and not half) or hour > 24 or minute > 59:
            return match[0]
        if half.startswith(("a", "p")):
            if not 1 <= hour <= 12:
                return match[0]
            hour = hour % 12 + (12 if half.startswith("p") else 0)
        found.append((hour * 60 + minute) % (24 * 60))
        return " ; "

    rest = _CLOCK.sub(take, text)
    found.extend(_NAMED_TIMES[word] for word in _WORD.findall(rest) if word in _NAMED_TIMES)
    return found, rest


def read_numbers(text: str) -> list[Amount]:
    """The numbers of a lower-case text: digits, else number words up to twenty."""
    found = []
    for match in _NUMBER.finditer(text):
        money = match["before"] or match["after"]
        value = _decimal(match["digits"]) * _SCALES.get(match["scale"] or "", 1)
        found.append(Amount(value, _CURRENCIES[money] if money else None))
    if not found:
        found = [Amount(Decimal(_SMALL[word]), None) for word in _WORD.findall(text) if word in _SMALL]
    return found


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


MAX_WORDS = 30
_MAX_CHARACTERS = 600
_MAX_EXTRA = 4
"""So many words of substance may stand beside a name or a place."""

_ANY_WORD = re.compile(r"[^\W_]+")
_ARTICLES = frozenset("the a an".split())
_TITLES = frozenset("mr mrs ms miss dr prof professor sir madam herr frau".split())
_FUNCTION = _ARTICLES | frozenset(
    """i it is was were be been are by of in at on to for from with that this his her he she they we you
    as who whose name named called answer person place town city final finally approved approves signed
    signs agreed fixed repaired found handles answers answered leads sent sends wrote writes said says
    held hotel mail mails email message according sleep stay does did has had will would one end now not
    but first later last""".split()
)
_SEPARATOR = re.compile(r"[,;/&|\n()]|\bor\b|\band\b|\balternatively\b")
_NOTHING = re.compile(
    r"\b(?:not in (?:the|this|my|your) (?:mailbox|mails?|inbox)|nothing"
    r"|no (?:such )?(?:e-?mails?|mails?|messages?|answer|information|mention|record|result)s?\b"
    r"|(?:can ?not|could not|can't|couldn't|did not|didn't|does not|doesn't|do not|don't"
    r"|is not|isn't|are not|was not|wasn't|not) (?:be )?"
    r"(?:find|found|exist|say|mention|mentioned|contain|answer|answered|answerable|appear|stated|there|known)"
    r"|none of the (?:e-?mails?|mails?|messages?)|unanswerable|not available)"
)
_HEDGE = re.compile(r"\b(?:but|perhaps|maybe|however|although|except|probably|possibly|might)\b")


def matches(answer: str, accepted: Sequence[str], answer_type: str | None) -> bool:
    """Whether the answer is one of the accepted values, and no other of its type.

    Args:
        answer: The agent's answer.
        accepted: The accepted forms of the right answer.
        answer_type: ``person``, ``date``, ``time``, ``amount``, ``number``, ``place``, ``text`` or
        ``None`` (as text).

    Never raises because of an answer.
    """
    longest = max((len(gold.split()) for gold in accepted), default=0)
    if not accepted or not answer.strip() or len(answer.split()) > max(MAX_WORDS, 2 * longest):
        return False
    if len(answer) > max(_MAX_CHARACTERS, 3 * max(map(len, accepted))):
        return False
    compare = _COMPARERS.get(answer_type or "text", _same_text)
    plain = _plain(answer)
    return any(compare(plain, _plain(gold)) for gold in accepted)


def says_nothing_found(answer: str) -> bool:
    """Whether the answer claims, without hedging, that the mailbox does not contain the answer."""
    if len(answer.split()) > MAX_WORDS or len(answer) > _MAX_CHARACTERS:
        return False
    plain = _plain(answer)
    return bool(_NOTHING.search(plain)) and not _HEDGE.search(plain)


def _plain(text: str) -> str:
    """Lower case, without diacritics, with plain quotes and spaces."""
    text = unicodedata.normalize("NFKD", text.replace("’", "'").replace("\u00a0", " "))
    return "".join(char for char in text if not unicodedata.combining(char)).lower().strip()


def _same_amount(answer: str, gold: str) -> bool:
    wanted = read_numbers(gold)
    found = _numbers_only(answer)
    money = [amount for amount in found if amount.currency]
    return bool(wanted) and _all_equal(money or found, wanted[0])


def _same_number(answer: str, gold: str) -> bool:
    wanted = read_numbers(gold)
    return bool(wanted) and _all_equal(_numbers_only(answer), wanted[0])


def _numbers_only(answer: str) -> list[Amount]:
    """The numbers that are no part of a date or a time written with a colon."""
    _, rest = read_dates(answer)
    return read_numbers(re.sub(r"\b\d{1,2}:\d{2}(?::\d{2})?\b", " ; ", rest))


def _all_equal(found: list[Amount], wanted: Amount) -> bool:
    def equal(amount: Amount) -> bool:
        currencies = {amount.currency, wanted.currency} - {None}
        return amount.value == wanted.value and len(currencies) <= 1

    return bool(found) and all(equal(amount) for amount in found)


def _same_date(answer: str, gold: str) -> bool:
    wanted, _ = read_dates(gold)
    found, _ = read_dates(answer)
    if not wanted or not found:
        return False
    (year, month, day) = min(wanted[0], key=lambda reading: (reading[1], reading[2]))
    accepted = {(year, month, day), (None, month, day)}
    if year is None:
        return all(any(reading[1:] == (month, day) for reading in readings) for readings in found)
    return all(readings & accepted for readings in found)


def _same_time(answer: str, gold: str) -> bool:
    wanted, _ = read_times(gold)
    _, without_dates = read_dates(answer)
    found, _ = read_times(without_dates)
    return bool(wanted) and bool(found) and set(found) == {wanted[0]}


def _same_person(answer: str, gold: str) -> bool:
    names = [word for word in _ANY_WORD.findall(gold) if word not in _TITLES]
    if not names:
        return False
    first, last = names[0], names[-1]
    answer = " ".join(re.sub(r"\.", " ", answer).split())
    answer = re.sub(
        rf"\b{re.escape(last)}\s*,\s*{re.escape(' '.join(names[:-1]) or last)}\b", " ".join(names), answer
    )
    forms = [names, [first, last], [first[0], last], [last]]
    return any(_only_value(answer, form) for form in forms)


def _same_place(answer: str, gold: str) -> bool:
    return _only_value(answer, [word for word in _ANY_WORD.findall(gold) if word not in _ARTICLES])


def _only_value(answer: str, wanted: list[str]) -> bool:
    """Whether the text names ``wanted`` between function words, and offers nothing else in its place."""
    seen, extra = False, 0
    for segment in _SEPARATOR.split(answer):
        words = [word for word in _ANY_WORD.findall(segment) if word not in _TITLES]
        runs = _runs(words)
        here = wanted in runs
        others = [run for run in runs if run != wanted]
        if not here and runs and len(words) == sum(map(len, runs)):
            return False
        seen |= here
        extra += sum(map(len, others))
    return seen and extra <= _MAX_EXTRA


def _runs(words: list[str]) -> list[list[str]]:
    """The stretches of words between function words."""
    runs: list[list[str]] = [[]]
    for word in words:
        if word in _FUNCTION:
            runs.append([])
        else:
            runs[-1].append(word)
    return [run for run in runs if run]


def _same_text(answer: str, gold: str) -> bool:
    """Equal but for case, punctuation and articles, or the gold text with a few words around it."""
    have = [word for word in _ANY_WORD.findall(answer) if word not in _ARTICLES]
    want = [word for word in _ANY_WORD.findall(gold) if word not in _ARTICLES]
    if not want:
        return False
    width = len(want)
    inside = any(have[i : i + width] == want for i in range(len(have) - width + 1))
    return inside and len(have) <= 2 * width + 10


_COMPARERS: dict[str, Callable[[str, str], bool]] = {
    "amount": _same_amount,
    "number": _same_number,
    "date": _same_date,
    "time": _same_time,
    "person": _same_person,
    "place": _same_place,
    "text": _same_text,
}
