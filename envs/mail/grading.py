"""Grade answers: compare free text with the accepted forms of a fact, without a language model.

What counts: the value, however it is written (``1,250.00 EUR`` is ``€1250``, ``2:30 pm`` is ``14:30``,
``12 March`` is ``2024-03-12``), alone or in a sentence. What does not: several values at once, in whatever
way they are joined, or the text of a mail. An answer is right for one value of a kind at most, so listing
candidates does not pay.

Decisions worth knowing:

* Beside a name, a place or a text may stand common words, words of the question, and, if the value has
  capitals, words without: ``Maria Holt, from sales``. Any other word may be another candidate, and the answer
  is wrong. A text of several words may have fewer further words than it has itself.
* Beside a date, a time or an amount may stand numbers that a word labels: ``1,250 EUR for 40 pallets``.
* An answer with ``not``, ``never`` or ``except`` is wrong, unless the question or the right answer has it.
* An answer of more than `MAX_WORDS` words is wrong, if the right one is not as long.
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

from art_gym.envs.mail.values import Amount, read_dates, read_numbers, read_times

MAX_WORDS = 30
_MAX_CHARACTERS = 600

_ANY_WORD = re.compile(r"[^\W_]+")
_SKIPPED = frozenset("the a an mr mrs ms miss dr prof professor sir madam herr frau".split())
_COMMON = frozenset(
    """i it is was were be been being are am by of in at on to for from with into via per as than that this
    these those there here his her hers he she him they them their you your we us our my me its who whom whose
    which what when where why how whether and or so also just only very such because since until while
    during after before about according name named called answer answers answered person place town city
    lead leads approved approves signed signs agreed fixed repaired found finds handles sends sent wrote
    writes written wants wanted said says told stated held hotel mail mails email emails message messages
    sleep stay does did do done has had have would should could can must if one end now but first last
    later final finally please thanks thank hi hello think believe sure maybe perhaps probably likely ok
    okay see based regarding thus therefore s t e""".split()
)
"""Words that are no answer beside one."""
_CALENDAR = frozenset(
    """monday tuesday wednesday thursday friday saturday sunday january february july september october
    november december""".split()  # the other months are names, too
)
_MONTH_ALONE = re.compile(
    r"\b(?:jan|febr)uary\b|\b(?:april|june|july|august|(?:sept|nov|dec)ember|october)\b"
)
_ADDRESS = re.compile(r"\S+@\S+")
_ENDING = re.compile(r"(?<=\w{3})(?:'s|ing|ed|es|s|e|d)$")
_DENIAL = re.compile(
    r"\bnot\b|\b\w+n't\b|\bcannot\b|\bnever\b|\bneither\b|\bnor\b|\bexcept\b"
    r"|\bunlike\b|\b(?:any|every)(?:one|body|thing) but\b|\ball but\b"
)
_FINDING = (
    r"(?:find|found|locate|exist|say|tell|know|see|determine|mention|mentioned|contain|answer|answered|answerable"
    r"|appear|stated|given|named|included|there|known|available)"
)
_SOURCE = r"(?:mail|mails|e-?mails?|messages?|inbox|mailbox)"
_STATED = r"(?:mentioned|given|stated|found|listed|named|included)"
_NOTHING = re.compile(
    rf"\bnot (?:in|among) (?:the|this|my|your|any of the) {_SOURCE}\b"
    r"|\bnothing(?! (?:to|but|except|more|else)\b)|\b(?:nobody|no one) (?:says|said|mentions|wrote|writes)\b"
    rf"|\bno (?:such )?(?:{_SOURCE}|answers?|info|information|mention|records?|results?|match|matches|idea)\b"
    rf"|\bno (?:\w+ ){{1,4}}(?:is|are|was|were) {_STATED}\b"
    r"|\bthere (?:is|are|was|were) no (?!doubt|question|need|problem|reason|way but)"
    r"|(?:\bnot|\bcannot|\b\w+n't) (?:(?:be|been|anywhere|actually|able to|it|this|that) )?"
    rf"{_FINDING}\b|\bunable to {_FINDING}\b|\bnone of the {_SOURCE}\b|\b(?:unanswerable|unavailable|n/a)\b"
    r"|^(?:it is |it's |the answer is |answer: )?(?:unknown|none|null|nil|no|not known|no one|nobody)\W*$"
    r"|\b(?:is|are|remains|was) unknown\b"
)
_HEDGE = re.compile(r"\b(?:but|perhaps|maybe|however|although|except|probably|possibly|might)\b")


def matches(answer: str, accepted: Sequence[str], answer_type: str | None, question: str = "") -> bool:
    """Whether the answer is one of the accepted values, and names no other.

    Args:
        answer: The agent's answer.
        accepted: The accepted forms of the right answer.
        answer_type: ``person``, ``date``, ``time``, ``amount``, ``number``, ``place``, ``text`` or
        ``None`` (as text).
        question: The question, whose words an answer may repeat.

    Never raises because of an answer.
    """
    longest = max((len(gold.split()) for gold in accepted), default=0)
    if not accepted or not answer.strip() or len(answer.split()) > max(MAX_WORDS, 2 * longest):
        return False
    if len(answer) > max(_MAX_CHARACTERS, 3 * max(map(len, accepted))):
        return False
    compare = _COMPARERS.get(answer_type or "text", _same_text)
    given, asked = _plain(answer), _plain(question)
    return any(
        compare(given, gold, asked) and not _denials(given) - _denials(f"{gold} {asked}")
        for gold in map(_plain, accepted)
    )


def says_nothing_found(answer: str, question: str = "") -> bool:
    """Whether the answer claims that the mailbox does not contain the answer, and gives none.

    Args:
        answer: The agent's answer.
        question: The question, whose words and numbers an answer may repeat.
    """
    if len(answer.split()) > MAX_WORDS or len(answer) > _MAX_CHARACTERS:
        return False
    plain = _plain(answer)
    claim = _NOTHING.search(plain.lower())
    if claim is None or _HEDGE.search(plain.lower()) or ":" in plain[claim.end() :]:
        return False
    asked = _stems(_plain(question)) | _COMMON | _SKIPPED
    named = [w for w in _ANY_WORD.findall(plain)[1:] if w[0].isupper() or any(map(str.isdigit, w))]
    return all(_stem(word.lower()) in asked or word.lower() in asked for word in named)


def can_be_right(answer: str, answer_type: str | None, question: str) -> bool:
    """Whether an answer is graded right where it is the accepted one: ``no`` is not, it gives up."""
    return matches(answer, [answer], answer_type, question) and not says_nothing_found(answer, question)


def stands_in(answer: str, text: str) -> bool:
    """Whether a text has the words of an answer one after another, in any script.

    Case, accents and punctuation do not count. Letters of scripts without case, such as Chinese ones, count
    one by one, since many of these scripts put no spaces between words.
    """
    wanted, words = (f" {' '.join(_pieces(part))} " for part in (answer, text))
    return bool(wanted.strip()) and wanted in words


def _pieces(text: str) -> list[str]:
    plain = _plain(text).lower()
    apart = "".join(f" {char} " if char.isalpha() and char == char.upper() else char for char in plain)
    return re.findall(r"\d+|[^\W\d_]+", apart)


def _plain(text: str) -> str:
    """Without diacritics, with plain quotes and spaces."""
    text = unicodedata.normalize("NFKD", text.replace("’", "'").replace("\u00a0", " "))
    return "".join(char for char in text if not unicodedata.combining(char)).strip()


def _denials(text: str) -> set[str]:
    return set(_DENIAL.findall(text.lower()))


def _stems(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in _ANY_WORD.findall(text.lower()))


def _stem(word: str) -> str:
    return _ENDING.sub("", word)


# ----------------------------------------------------------------------
# Numbers, dates and times


def _same_amount(answer: str, gold: str, question: str) -> bool:
    found = _numbers_only(answer, question)
    if any(amount.currency for amount in found):
        found = [amount for amount in found if amount.currency or not amount.labelled]
    return _all_equal(found, read_numbers(gold.lower()))


def _same_number(answer: str, gold: str, question: str) -> bool:
    return _all_equal(_numbers_only(answer, question), read_numbers(gold.lower()))


def _numbers_only(answer: str, question: str) -> list[Amount]:
    """The numbers that are no part of a date or a time written with a colon, nor of the question."""
    _, rest = read_dates(answer)
    found = read_numbers(re.sub(r"\b\d{1,2}:\d{2}(?::\d{2})?\b", " ; ", rest).lower())
    asked = {amount.value for amount in read_numbers(question.lower())}
    return [amount for amount in found if amount.value not in asked] or found


def _all_equal(found: list[Amount], wanted: list[Amount]) -> bool:
    def equal(amount: Amount) -> bool:
        currencies = {amount.currency, wanted[0].currency} - {None}
        return amount.value == wanted[0].value and len(currencies) <= 1

    return bool(wanted) and bool(found) and all(equal(amount) for amount in found)


def _same_date(answer: str, gold: str, question: str) -> bool:
    wanted, _ = read_dates(gold)
    found, rest = read_dates(answer)
    if not wanted or not wanted[0] or not found:
        return False
    (year, month, day) = min(wanted[0], key=lambda reading: (reading[1], reading[2]))
    if _number_left(read_times(rest)[1], question) or _MONTH_ALONE.search(rest.lower()):
        return False
    accepted = {(year, month, day), (None, month, day)}
    if year is None:
        return all(any(reading[1:] == (month, day) for reading in readings) for readings in found)
    return all(readings & accepted for readings in found)


def _same_time(answer: str, gold: str, question: str) -> bool:
    wanted, _ = read_times(gold)
    _, without_dates = read_dates(answer)
    found, rest = read_times(without_dates)
    return bool(wanted) and set(found) == {wanted[0]} and not _number_left(rest, question)


def _number_left(rest: str, question: str) -> bool:
    """Whether a number without a label, which may be another value, is left: the 12 of ``12 or 13 March``."""
    digits = read_numbers(rest.lower()) if any(map(str.isdecimal, rest)) else []
    asked = {amount.value for amount in read_numbers(question.lower())}
    return any(not amount.labelled and amount.value not in asked for amount in digits)


# ----------------------------------------------------------------------
# Names and other words


def _same_person(answer: str, gold: str, question: str) -> bool:
    names = [word for word in _ANY_WORD.findall(gold.lower()) if word not in _SKIPPED]
    if not names:
        return False
    first, last = names[0], names[-1]
    turned = rf"\b({re.escape(last)})\s*,\s*({re.escape(' '.join(names[:-1]) or last)})\b"
    answer = re.sub(turned, r"\2 \1", _without_others(answer, names), flags=re.IGNORECASE)
    forms = [names, [first, last], [first[0], last], [last]]
    return any(_only_candidate(answer, form, question) for form in forms)


def _same_place(answer: str, gold: str, question: str) -> bool:
    names = [word for word in _ANY_WORD.findall(gold.lower()) if word not in _SKIPPED]
    return _only_candidate(_without_others(answer, names), names, question)


def _without_others(answer: str, names: Sequence[str]) -> str:
    """Without what is no name: dates, times, numbers, addresses, and days unless the right name is one."""
    _, text = read_dates(_ADDRESS.sub(" ; ", answer))
    _, text = read_times(text)
    words = _CALENDAR if _CALENDAR.isdisjoint(names) else ()
    return _ANY_WORD.sub(
        lambda match: ";" if match[0].isdigit() or match[0].lower() in words else match[0], text
    )


def _same_text(answer: str, gold: str, question: str) -> bool:
    """Equal but for case, punctuation and articles, or the gold text with a few words around it."""
    wanted = [word for word in _ANY_WORD.findall(gold.lower()) if word not in _SKIPPED]
    asked = _stems(question)
    new = [word for word in wanted if word not in _COMMON and _stem(word) not in asked]
    return _only_candidate(answer, wanted, question, fewer_than=len(new) or len(wanted))


def _only_candidate(answer: str, wanted: list[str], question: str, fewer_than: int = 1) -> bool:
    """Whether a text names ``wanted`` and, beside it, fewer words than so many that may be another answer.

    If the value is written with capitals, only words with capitals may be another; if it is not, all may. So
    of several names in one text at most one is its answer.
    """
    words: list[str] = [word for word in _ANY_WORD.findall(answer) if word.lower() not in _SKIPPED]
    folded = [word.lower() for word in words]
    width = len(wanted)
    starts = [at for at in range(len(words) - width + 1) if folded[at : at + width] == wanted]
    if not starts or _COMMON.issuperset(wanted):
        return bool(wanted) and folded == wanted
    taken = {at + offset for at in starts for offset in range(width)}
    known = _stems(question)
    if known.issuperset(_stem(word) for word in wanted if word not in _COMMON):
        known = frozenset()  # the question names the candidates
    others = [
        at
        for at, word in enumerate(folded)
        if at not in taken and word not in _COMMON and _stem(word) not in known
    ]
    if others[:2] == [0, 1] and words[1].islower():  # a sentence begins: "Sales manager Maria Holt"
        words[0] = folded[0]
    if all(word.isdecimal() for word in wanted):  # words are no candidates beside a number
        return sum(words[at].isdecimal() for at in others) < fewer_than
    capitals = sum(words[at][0].isupper() for at in others)
    if any(_has_capitals(words[at : at + width]) for at in starts):
        return capitals < fewer_than
    return not capitals and len(others) < fewer_than


def _has_capitals(words: Sequence[str]) -> bool:
    return all(word[0].isupper() for word in words if word.lower() not in _COMMON)


_COMPARERS: dict[str, Callable[[str, str, str], bool]] = {
    "amount": _same_amount,
    "number": _same_number,
    "date": _same_date,
    "time": _same_time,
    "person": _same_person,
    "place": _same_place,
    "text": _same_text,
}
