"""Baselines of the mail environment (scripted policies), and the demonstrator that a small model imitates.

Each is ``baseline(env, rng) -> act``; ``act(observation)`` gives the next reply. They are shown beside every
trained result. Only the teacher, ``demonstrator``, uses what no agent can know: which words of the question
identify the mail, and what the answer is. It is deliberately a bad one, and not for comparison.
"""

from __future__ import annotations

import calendar
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.envs.mail.message import Message
from art_gym.envs.mail.store.store import query_words
from art_gym.envs.mail.synthetic.language import MONTHS
from art_gym.tasks import TaskSet
from art_gym.tools import Tool

if TYPE_CHECKING:
    from art_gym.envs.mail.env import EmailEnv


_GOOD_QUERY = 0.7  # how often the demonstrator searches the identifying words; otherwise three words in a row
_GOOD_QUERY_FOR_A_MAIL = 0.3  # the same at difficulty 1, where more would leave little to learn
_BEST_LINE = 0.7  # how often it selects a line with the most matched words
_MORE_CALLS = 0.12  # how often it reads or searches again before it ends
_LOOKALIKES = 2  # the difficulty at which sender, month, first or last decide between mails
_FIRST_OR_LAST = 0.9  # how often it takes the first or last of them, as asked
_LAST = re.compile(r"\b(?:last|ended)\b")
_FULL_NAME = re.compile(r"[A-Z]\w+ [A-Z]\w+")
_DATE = re.compile(rf"(?:(\d+) )?({'|'.join(MONTHS)}) (\d{{4}})")
_STOP_WORDS = frozenset(
    (
        "a an the of for in on at to by from with about and or is are was were be been do does did has have "
        "had i you he she it we they me my our your his her their this that these those which what who whom "
        "whose when where how much many find show mail e-mail email message need want please can could would "
        "before after again there"
    ).split()
)


def random_valid(env: EmailEnv, rng: np.random.Generator) -> Act:
    """Random calls that the environment accepts: words of the question, ids that were listed."""

    def act(observation: str) -> str:
        allowed = ["search"]
        if env.listed:
            allowed += ["read", "select", "answer"]
        if env.results:
            allowed += ["filter", "sort"]
        chosen = env.tools[allowed[int(rng.integers(len(allowed)))]]
        return chosen.render(_random_arguments(env, chosen, rng))

    return act


def _player(script: Callable[[Any, np.random.Generator], Iterator[str]]) -> Baseline:
    """The baseline that gives the replies of a script in turn."""

    @functools.wraps(script)
    def baseline(env: EmailEnv, rng: np.random.Generator) -> Act:
        replies = script(env, rng)
        return lambda observation: next(replies)

    return baseline


@_player
def bm25(env: EmailEnv, rng: np.random.Generator) -> Iterator[str]:
    """Search the question's words by BM25 alone and select (or cite) the top hit."""
    yield env.tools["search"].render({"query": env.task.prompt})
    top = max(env.listed, key=env.score, default=None)
    yield _end(env, None if top is None else env.listed[top])


@_player
def word_table(env: EmailEnv, rng: np.random.Generator) -> Iterator[str]:
    """Search the three words that most often identify a mail in training questions; take the best match."""
    shares = _identifying_shares(env.tasks)
    words = sorted(query_words(env.task.prompt), key=lambda word: -shares.get(word, 0.0))
    yield from _search_and_end(env, words[:3])


@_player
def keyword_counter(env: EmailEnv, rng: np.random.Generator) -> Iterator[str]:
    """Search all content words of the question; take the mail with most of them."""
    yield from _search_and_end(env, _content_words(env.task.prompt))


@_player
def scripted(env: EmailEnv, rng: np.random.Generator) -> Iterator[str]:
    """Search the content words of each clause of the question; take the mail with the most and rarest."""
    clauses = [_content_words(clause) for clause in re.split(r"[,;:.?!]", env.task.prompt)]
    best: tuple[int, float] = (0, 0.0)
    choice: int | None = None
    for words in [words for words in clauses if words][: env.max_turns - 1]:
        yield env.tools["search"].render({"query": " ".join(words)})
        # Of mails that hold as many words of a clause, the rarest words decide.
        for row, matched in env.results:
            standing = (matched, env.score(row))
            if standing > best:
                best, choice = standing, row
    yield _end(env, env.listed.get(choice) if choice is not None else None)


@_player
def demonstrator(env: EmailEnv, rng: np.random.Generator) -> Iterator[str]:
    """A noisy agent to learn the tools from: right often enough to hold good behaviour, wrong often enough.

    It knows which words of the question identify the mail, and searches them in three of ten tries at
    difficulty 1, in seven of ten at the others; otherwise any three content words in a row. It often selects
    a line that is not the best. Among look-alikes it searches by sender and dates if the question names them,
    and takes the oldest or newest line as asked. It never knows which mail is right.

    A question for a fact it answers rightly once it has read where the answer stands, or has seen that no
    mail has the identifying words; else it guesses as the others do. If the answer takes two mails, it
    searches for the words of the one and then of the other.
    """
    if env.task.data["kind"] != "known_item":
        yield from _demonstrated_answer(env, rng)
        return
    yield _noisy_search(env, rng)
    while rng.random() < _MORE_CALLS and env.turn < env.max_turns - 1:
        if env.listed and rng.random() < 0.5:
            yield env.tools["read"].render({"email_id": f"m{int(rng.integers(len(env.listed))) + 1}"})
        else:
            yield _noisy_search(env, rng)
    while not env.results and env.turn < env.max_turns - 1:
        yield _noisy_search(env, rng)
    yield _end(env, _noisy_choice(env, rng))


BASELINES: Mapping[str, Baseline] = {
    "random": random_valid,
    "bm25": bm25,
    "word-table": word_table,
    "keyword-counter": keyword_counter,
    "scripted": scripted,
}
TEACHERS: Mapping[str, Baseline] = {"demonstrator": demonstrator}


def _search_and_end(env: EmailEnv, words: list[str]) -> Iterator[str]:
    """One search; the end is the mail with the most words, and of equals the one with the rarest."""
    yield env.tools["search"].render({"query": " ".join(words), "limit": 20})
    most = max(env.results, key=lambda result: (result[1], env.score(result[0])), default=None)
    yield _end(env, None if most is None else env.listed[most[0]])


@functools.lru_cache(maxsize=8)
def _identifying_shares(tasks: TaskSet) -> dict[str, float]:
    """For each word of the training questions, in which share of them it is one that identifies the mail."""
    asked, identifying = Counter[str](), Counter[str]()
    for task in tasks.split("train") if "train" in tasks.splits else ():
        asked.update(query_words(task.prompt))
        identifying.update(query_words(" ".join(task.data["telling"])))
    return {word: identifying[word] / count for word, count in asked.items()}


def _content_words(text: str) -> list[str]:
    return [word for word in query_words(text) if word not in _STOP_WORDS]


def _demonstrated_answer(env: EmailEnv, rng: np.random.Generator) -> Iterator[str]:
    """Search, read what matches best, and answer once the mails are read in which the answer stands."""
    read = list[int]()
    while env.turn < env.max_turns - 1:
        words = _words_of_next(env, read)
        matching = [row for row, matched in env.results if matched >= min(3, len(words)) and row not in read]
        if matching:
            read.append(matching[0])
            yield env.tools["read"].render({"email_id": f"m{env.listed[read[-1]]}"})
            cited = [row for row in read if env.store.message_id(row) in env.task.data["gold_ids"]]
            if cited and len(cited) == len(env.task.data["gold_ids"]):
                bodies = " ".join(env.store.message(row).body for row in cited)
                answers = env.task.data["answers"]
                text = next((form for form in answers if form in bodies), answers[0])
                sources = [f"m{env.listed[row]}" for row in cited]
                yield env.tools["answer"].render({"text": text, "sources": sources})
        else:
            yield (search := _noisy_search(env, rng, words))
            searched_well = all(word in search.lower() for word in words)
            if searched_well and not any(matched >= min(3, len(words)) for _, matched in env.results):
                break
    yield _end(env, env.listed[read[-1]] if read else None)


def _words_of_next(env: EmailEnv, read: list[int]) -> list[str]:
    """The identifying words; of two mails those that the first one holds which is not read yet."""
    words: list[str] = env.task.data["telling"]
    gold = [env.store.find(name) for name in env.task.data["gold_ids"]]
    waiting = [row for row in gold if row is not None and row not in read]
    if len(gold) < 2 or not waiting:
        return words
    mail = env.store.message(waiting[0])
    held = query_words(f"{mail.subject} {mail.sender.name} {mail.body}")
    return [word for word in words if word in held]


def _noisy_search(env: EmailEnv, rng: np.random.Generator, words: Sequence[str] | None = None) -> str:
    """A search for the identifying words, all or the given ones, or for any three in a row."""
    content, level = _content_words(env.task.prompt), env.task.data["difficulty"]
    known = env.task.data["telling"] if words is None else words
    good = [word for word in query_words(env.task.prompt) if word in known]
    start = int(rng.integers(max(1, len(content) - 2)))
    arguments: dict[str, object] = {"query": " ".join(content[start : start + 3])}
    if good and rng.random() < (_GOOD_QUERY_FOR_A_MAIL if level == 1 else _GOOD_QUERY):
        narrow = level == _LOOKALIKES
        arguments = _narrowed(good, env.task.prompt) if narrow else {"query": " ".join(words or good)}
    return env.tools["search"].render(arguments)


def _narrowed(words: list[str], question: str) -> dict[str, object]:
    """A search for the words that keeps to the sender, and to the day or month, that the question names.

    Without a date few are listed, so that the first or last of them is likely the one. Of a conversation the
    first mail is the best match: its answers hold the words only where they quote it.
    """
    named, dated = _FULL_NAME.search(question), _DATE.search(question)
    name = named.group() if named else ""
    query = " ".join(word for word in words if word not in query_words(name))
    arguments: dict[str, object] = {"query": query}
    if named:
        arguments["sender"] = name
    if dated:
        day, month, year = dated[1], MONTHS.index(dated[2]) + 1, int(dated[3])
        last = calendar.monthrange(year, month)[1]
        for argument, number in (("after", day or 1), ("before", day or last)):
            arguments[argument] = f"{year}-{month:02d}-{int(number):02d}"
    else:
        arguments["limit"] = 4 if _LAST.search(question) else 3 if named else 1
    return arguments


def _noisy_choice(env: EmailEnv, rng: np.random.Generator) -> int | None:
    # If another reply was carried out in between, not all results need be listed.
    listed = [(env.listed[row], matched) for row, matched in env.results if row in env.listed]
    if not listed:
        return None
    noise = rng.random(len(listed))
    alike = env.task.data["difficulty"] == _LOOKALIKES
    best = rng.random() < (_FIRST_OR_LAST if alike else _BEST_LINE)
    if best and alike:
        return env.listed[_first_or_last(env)]
    if best:
        scores = [matched + jitter for (_, matched), jitter in zip(listed, noise, strict=True)]
    else:
        scores = list(noise)
    return listed[int(np.argmax(scores))][0]


def _first_or_last(env: EmailEnv) -> int:
    """The oldest of the results that match best; if the last is asked for, the newest with its subject."""
    listed = [(row, matched) for row, matched in env.results if row in env.listed]
    most = max(matched for _, matched in listed)
    oldest = [row for row, matched in listed if matched == most][-1]
    if not _LAST.search(env.task.prompt):
        return oldest
    title = _title(env, oldest)
    return next(row for row, _ in listed if _title(env, row) == title)


def _title(env: EmailEnv, row: int) -> str:
    return re.sub(r"^((Re|Fwd): )+", "", env.store.header(row).subject)


def _end(env: EmailEnv, number: int | None) -> str:
    """The ending call for a mail: select it, or give the likeliest value in it as the answer."""
    if number is None:
        return env.tools["answer"].render({"text": "not in the mailbox"})
    if env.task.data["kind"] == "known_item":
        return env.tools["select"].render({"email_id": f"m{number}"})
    row = next(row for row, given in env.listed.items() if given == number)
    text = _likely_value(env.store.message(row), env.task.prompt)
    return env.tools["answer"].render({"text": text, "sources": [f"m{number}"]})


def _likely_value(message: Message, question: str) -> str:
    """A guess at the answer without a model: the first text in the mail of the kind asked for."""
    lowered, body = question.lower(), message.body
    if re.search(r"e-?mail address|address of", lowered) and (address := _address_of(message, lowered)):
        return address
    patterns = [
        (("website", "web site", "web page", "url", "link"), r"https?://[^\s<>)]+|www\.[^\s<>)]+"),
        (("phone", "fax", "mobile", "cell"), r"\+?\(?\d[\d ().-]{5,}\d"),
        (("percent", "per cent"), r"\d+(?:\.\d+)? ?(?:%|per ?cent)"),
        (
            ("how much", "amount", "cost", "price"),
            r"\d[\d.,]*\s?(?:EUR|USD|GBP|euros?|dollars?)|[€$£]\s?\d[\d.,]*",
        ),
        (
            ("when", "date", "day", "deadline"),
            r"\d{4}-\d{2}-\d{2}|\d{1,2} [A-Z][a-z]+(?: \d{4})?|[A-Z][a-z]+ \d{1,2}",
        ),
        (("time", "o'clock"), r"\d{1,2}[:.]\d{2}(?:\s?[ap]m)?"),
        (("number", "how many", "extension", "room"), r"\d+"),
        (("who", "whom", "whose", "name"), r"[A-Z][a-z]+ [A-Z][a-z]+"),
    ]
    for cues, pattern in patterns:
        if any(cue in lowered for cue in cues) and (found := re.search(pattern, body)):
            return found.group()
    found = re.search(r"[A-Z][a-z]+", body)
    return found.group() if found else "not in the mailbox"


def _address_of(message: Message, question: str) -> str | None:
    """The address of whom the question names, else the first one in the text."""
    asked = set(query_words(question))
    named = {who.email: len(asked.intersection(query_words(who.name))) for who in message.people if who.email}
    best = max(named, key=named.__getitem__, default=None)
    if best is not None and named[best]:
        return best
    found = re.search(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", message.body)
    return found.group() if found else best


def _random_arguments(env: EmailEnv, chosen: Tool, rng: np.random.Generator) -> dict[str, object]:
    words = query_words(env.task.prompt)
    picked = " ".join(words[int(rng.integers(len(words)))] for _ in range(3))
    some_id = f"m{int(rng.integers(max(1, len(env.listed)))) + 1}"
    values: dict[str, object] = {
        "query": picked,
        "email_id": some_id,
        "text": picked,
        "contains": words[int(rng.integers(len(words)))],
        "by": ("relevance", "date", "sender", "subject")[int(rng.integers(4))],
    }
    return {p.name: values[p.name] for p in chosen.parameters if p.name in values}
