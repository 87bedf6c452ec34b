"""Generate known-item questions about any mailbox, from words that few of its mails share."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from art_gym.envs.mail.message import Message
from art_gym.envs.mail.questions.model import Question, random_split
from art_gym.envs.mail.questions.request import request
from art_gym.envs.mail.store.store import MailStore
from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.envs.mail.synthetic.language import MONTHS, QUESTION_PHRASES, VOCABULARY
from art_gym.envs.mail.words import query_words

MIN_BODY_WORDS = 20
_TRIES = 6
"""Sets of words tried on one message."""
_MIN_SHARED = 3
"""An identifying word occurs in at least so many mails: misspellings and codes do not."""
_ENGLISH_WORD = re.compile(r"(?=[a-z]*[aeiouy])[a-z]{4,14}")
_QUOTE = re.compile(
    r"^\s*(?:>|-{2,}\s*(?:original|forwarded)|on .{5,80} wrote:)", re.IGNORECASE | re.MULTILINE
)
REPLY_PREFIX = re.compile(r"^(?:\s*\w{1,4}(?:\[\d+\])?\s*[:：])+")
"""What answers and forwarded mails have before their subject, as in ``Re: AW[2]: ``."""
_NOISE_MAILS = 20
"""Of so many other mails one lends a question its noise; if none can, the generated company's words do."""


def known_item_questions(store: MailStore, rng: np.random.Generator, count: int) -> list[Question]:
    """Questions that each want one mail of the store, found by words that the question contains.

    Identifying words are real words that the sender wrote and that few mails share, or the sender's name.
    Those of difficulty 1 find the mail alone; those of difficulty 2 share their words with other mails
    and name sender and month. Every question is checked by searching. Its other clause has words of another
    mail, which are as rare, and its sender: neither a list of words nor a search for all of them tells the
    two apart. Splits share no conversation.

    Args:
        store: The mailbox to ask about.
        rng: The source of chance.
        count: How many questions; fewer come back when the store has too few mails with such words.

    Raises:
        ValueError: If not one can be made.
    """
    fast = FastRng(rng)
    seed = fast.below(1 << 32)
    rows = list(store.rows())
    questions: list[Question] = []
    for row in fast.shuffled(rows):
        if len(questions) >= count:
            break
        question = _question(store, fast, rows, row, seed)
        if question is not None:
            questions.append(question)
    if not questions:
        raise ValueError(
            f"no question can be made about the {len(rows):,} mails of {store.path}: it takes a mail with "
            f"{MIN_BODY_WORDS} words of its own, some of which stand in {_MIN_SHARED} mails or more; import "
            "more mail, or write your own questions"
        )
    return questions


def _question(store: MailStore, rng: FastRng, rows: list[int], row: int, seed: int) -> Question | None:
    message = store.message(row)
    own = query_words(own_text(message))
    if length(own) < MIN_BODY_WORDS:
        return None
    asked_on = time_of_asking(store, rows, message, rng)
    found = _find_keywords(store, rng, row, message, own, asked_on)
    if found is None:
        return None
    shape, roles, dated = found
    held = set(query_words(f"{message.subject} {message.body} {' '.join(map(str, message.people))}"))
    noise = _noise(store, rng, rows, held, asked_on)
    text, keywords = request(rng, shape, roles, noise, lambda word: word not in held)
    if dated and (sent := message.date):
        form = rng.pick(QUESTION_PHRASES["sent_forms"]).format(m=MONTHS[sent.month - 1], year=sent.year)
        text = f"{text} {form}"
    return Question(
        id=f"mail-{row:06d}",
        text=text,
        kind="known_item",
        difficulty=2 if dated else 1,
        gold_ids=(message.message_id,),
        answers=(),
        answer_type=None,
        split=split_of(message, seed),
        asked_on=asked_on,
        mailbox=None,
        keywords=keywords,
    )


def split_of(message: Message, seed: int) -> str:
    """A random split, the same for all mails of a conversation: one subject, but for ``Re:``."""
    conversation = REPLY_PREFIX.sub("", message.subject).strip().casefold() or message.message_id
    return random_split(FastRng(np.random.default_rng([seed, zlib.crc32(conversation.encode())])))


def own_text(message: Message) -> str:
    """The body before anything quoted or forwarded."""
    quote = _QUOTE.search(message.body)
    return message.body[: quote.start()] if quote else message.body


def time_of_asking(store: MailStore, rows: list[int], message: Message, rng: FastRng) -> datetime:
    """Some days after a message of these rows was sent; without a date, after all other mail."""
    sent = message.date or store.header(rows[-1]).date or datetime(2000, 1, 1, tzinfo=UTC)
    return sent + timedelta(days=rng.between(1, 60), hours=rng.between(0, 12))


def _find_keywords(
    store: MailStore,
    rng: FastRng,
    row: int,
    message: Message,
    own: list[str],
    asked_on: datetime,
) -> tuple[str, dict[str, str], bool] | None:
    """Shape, roles and whether sender and month are needed; checked by searching as an agent would."""
    names = _sender_words(message)
    rare = _rare_words(store, rng, [word for word in own if word not in names], 24)
    for _ in range(_TRIES if len(rare) >= 3 else 0):
        chosen = rng.sample(rare, 3)
        by_sender = bool(names) and rng.chance(30)
        roles = (
            {"s": names[-1].capitalize(), "a": chosen[0], "b": chosen[1]}
            if by_sender
            else dict(zip("abc", chosen, strict=True))
        )
        query = " ".join(roles.values())
        hits = store.search(query, until=asked_on, limit=2)
        if hits and hits[0].row == row and (len(hits) == 1 or hits[1].matched < hits[0].matched == 3):
            return ("sab" if by_sender else "abc"), roles, False
        if by_sender and hits and hits[0].matched == 3 and message.date is not None:
            first = message.date.date().replace(day=1)
            last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
            dated = store.search(query, sender=names[-1], after=first, before=last, until=asked_on, limit=2)
            if [hit.row for hit in dated if hit.matched == 3] == [row]:
                return "sab", roles, True
    return None


def _rare_words(store: MailStore, rng: FastRng, words: list[str], tried: int) -> list[str]:
    """Real words that few mails share, of so many that are tried."""
    some = [word for word in rng.shuffled(words) if _is_real(word)][:tried]
    # What stands between spaces in Chinese is seldom said twice.
    fewest = {word: _MIN_SHARED if _has_case(word) else 1 for word in some}
    most = max(30, len(store) // 60)
    return [word for word in some if fewest[word] <= store.document_frequency(word) <= most]


def _noise(
    store: MailStore, rng: FastRng, rows: list[int], held: set[str], asked_on: datetime
) -> Mapping[str, Sequence[str]]:
    """Words for the clause that does not describe the mail: those of one other mail, and its sender."""
    for row in rng.sample(rows, _NOISE_MAILS):
        other = store.message(row)
        words = _rare_words(store, rng, [w for w in query_words(own_text(other)) if w not in held], 12)
        names = [name.capitalize() for name in _sender_words(other)[-1:] if name not in held]
        if len(words) >= 3 and names and (other.date is None or other.date <= asked_on):
            return {"n": names, **dict.fromkeys("uqh", words)}
    return {"n": VOCABULARY["first_names"], **dict.fromkeys("uqh", VOCABULARY["details"])}


def _has_case(word: str) -> bool:
    """Whether a word is of a script with capitals, such as Latin, Cyrillic or Greek."""
    return word != word.upper()


def _is_real(word: str) -> bool:
    """Whether a word looks like one of a language. Chinese and Korean ones are short."""
    if word.isascii():
        return _ENGLISH_WORD.fullmatch(word) is not None
    return word.isalpha() and (4 if _has_case(word) else 2) <= len(word) <= 14


def length(words: list[str]) -> int:
    """How many words there are; in scripts without spaces two characters are about one word."""
    return sum(1 if word.isascii() or _has_case(word) else -(-len(word) // 2) for word in words)


def _sender_words(message: Message) -> list[str]:
    """The sender's names as plain words, the surname last (``Allen, Phillip`` is turned round)."""
    last, comma, first = message.sender.name.partition(",")
    name = f"{first} {last}" if comma else message.sender.name
    return [
        word for word in query_words(name) if word.isalpha() and len(word) > (2 if _has_case(word) else 1)
    ]
