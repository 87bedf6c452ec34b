"""The generated mailbox and the questions about it; questions about any mailbox."""

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art_gym.envs.mail.collection import open_collection, read_questions, world_path
from art_gym.envs.mail.env import EmailEnv
from art_gym.envs.mail.grading import matches
from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.questions import Question, known_item_questions, world_questions
from art_gym.envs.mail.questions.generated import WordIndex
from art_gym.envs.mail.questions.request import words_of
from art_gym.envs.mail.store.store import MailStore
from art_gym.envs.mail.synthetic import language
from art_gym.envs.mail.synthetic.language import KINDS, VOCABULARY, Kind
from art_gym.envs.mail.synthetic.world import World, generate
from art_gym.errors import UnknownTaskError
from tests.envs.mail.boxes import written


@pytest.fixture(scope="module")
def world() -> World:
    return generate(5)


@pytest.fixture(scope="module")
def questions(world: World) -> list[Question]:
    return world_questions(world, np.random.default_rng(1))


@pytest.fixture(scope="module")
def store(world: World, tmp_path_factory: pytest.TempPathFactory) -> MailStore:
    return written(tmp_path_factory.mktemp("box") / "world.db", world.messages)


@pytest.fixture(scope="module")
def rows(world: World) -> dict[str, int]:
    return {message.message_id: row for row, message in enumerate(world.messages)}


@pytest.fixture(scope="module")
def index(world: World) -> WordIndex:
    return WordIndex(world.messages)


def texts_in(value: object) -> Iterator[str]:
    """All strings inside a value: of dicts the keys too, of a `Kind` its fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Kind):
        yield from texts_in([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, dict):
        yield from texts_in([*value.keys(), *value.values()])
    elif isinstance(value, tuple | list):
        for item in value:
            yield from texts_in(item)


def vocabulary() -> set[str]:
    """Every lower-case word that a generated mail, its headers or a question about it can contain."""
    tables = ("PHRASES", "REFERENCES", "VOCABULARY", "QUESTION_PHRASES", "QUESTION_CORES")
    named = [getattr(language, name) for name in (*tables, "LOOKALIKE_QUESTIONS", "REMINDERS")]
    texts = texts_in([*named, KINDS])
    roles = texts_in(language.DEPARTMENTS)
    words = set("re fwd on wrote eur euros am pm office example everyone new".split())
    for text in (*texts, *roles):
        words.update(re.findall(r"[a-z]+", re.sub(r"{\w+}", " ", text).lower()))
    return words


def test_the_same_seed_gives_the_same_mailbox_and_another_seed_another(world: World) -> None:
    again = generate(5)
    assert (again.messages, again.facts) == (world.messages, world.facts)
    other = generate(8, messages=1000)
    assert {m.body for m in other.messages}.isdisjoint(m.body for m in world.messages if len(m.body) > 300)


def test_a_default_mailbox_is_large_and_ordered() -> None:
    messages = generate(3).messages
    assert len(messages) >= 6000
    dates = [message.date for message in messages if message.date is not None]
    assert dates == sorted(dates)
    assert len(dates) == len(messages)
    assert f"{dates[0]:%F}" >= "2023-01-02"
    assert f"{dates[-1]:%F}" <= "2024-12-22"


def test_message_ids_are_unique_and_every_mail_lies_in_the_one_mailbox(world: World) -> None:
    ids = [one for message in world.messages for one in message.ids]
    assert len(set(ids)) == len(ids)
    assert {message.mailboxes for message in world.messages} == {(world.owner,)}
    assert sum(bool(message.duplicate_ids) for message in world.messages) > 50


@pytest.mark.parametrize("seed", [0, 4242])
def test_no_word_lies_outside_the_closed_vocabulary(seed: int) -> None:
    used: set[str] = set()
    for message in generate(seed, messages=2500).messages:
        people = " ".join(f"{person.name} {person.email}" for person in message.people)
        used.update(re.findall(r"[^\W\d_]+", f"{message.subject} {people} {message.body}".lower()))
    assert used - vocabulary() == set()
    assert len(vocabulary()) <= 2600
    count = Counter(word.lower() for words in VOCABULARY.values() for word in words)
    assert max(count.values()) == 1, "the pools share no word"


def test_conversations_answer_quote_forward_and_correct(world: World) -> None:
    topics = {topic: kind.name for kind in KINDS for topic in kind.topics}
    for project in world.company.projects:
        kinds = {topics[f.about["topic"]] for f in world.facts if f.about.get("project") == project.name}
        assert len(kinds) >= 10
    subjects = Counter(message.subject.split(":")[0] for message in world.messages)
    assert subjects["Re"] > 1000
    assert subjects["Fwd"] > 200
    assert sum("\n> " in message.body for message in world.messages) > 500
    assert sum(len(fact.statements) > 1 for fact in world.facts) > 200
    notes = sorted((world.annotations[m.message_id] for m in world.messages), key=lambda note: note.thread)
    before = {(one.act, two.act) for one, two in pairwise(notes) if one.thread == two.thread}
    assert {first for first, then in before if then == "second"} == {"ask", "nudge"}
    assert {first for first, then in before if then == "answer"} == {"talk", "forward"}
    opens = Counter(message.body.split("\n")[0].split(" ")[0] for message in world.messages)
    assert len([word for word, count in opens.items() if count > 50]) >= 8
    assert len({message.body for message in world.messages}) > 0.98 * len(world.messages)


def test_every_statement_of_a_fact_is_in_its_mail_and_in_the_senders_own_words(
    world: World, rows: dict[str, int]
) -> None:
    owners: dict[tuple[str, ...], set[int]] = {}
    for fact in world.facts:
        if "thing" in fact.about:
            owners.setdefault(tuple(fact.about.values()), set()).add(fact.thread)
        moments = [moment for _, moment, _ in fact.statements]
        assert moments == sorted(moments)
        for message_id, moment, value in fact.statements:
            message, note = world.messages[rows[message_id]], world.annotations[message_id]
            assert message.date == moment
            shown = note.sender.style.show(value, fact.value_type)
            assert shown.lower() in message.body[: note.own].lower()
    assert {len(threads) for threads in owners.values()} == {1}, (
        "project, topic and thing name a conversation"
    )


@pytest.mark.parametrize(("seed", "messages"), [(-1, 100), (1, 0)])
def test_wrong_arguments_are_refused(seed: int, messages: int) -> None:
    with pytest.raises(ValueError, match="seed must be >= 0 and messages >= 1"):
        generate(seed, messages)


def visible(world: World, question: Question) -> int:
    """How many messages, the first ones, can be seen when the question is asked."""
    return bisect_right(world.messages, question.asked_on, key=lambda message: message.date)


def of_level(questions: list[Question], level: int) -> list[Question]:
    return [question for question in questions if question.difficulty == level]


def test_there_are_enough_questions_of_every_kind_in_every_split(
    world: World, questions: list[Question]
) -> None:
    assert world_questions(world, np.random.default_rng(1)) == questions
    assert len(questions) >= 1500
    assert len({question.id for question in questions}) == len(questions)
    assert {question.difficulty for question in questions} == {1, 2, 3, 4}
    kinds = ("known_item", "fact", "two_messages", "unanswerable")
    found = {(question.kind, question.split) for question in questions}
    assert found == {(kind, split) for kind in kinds for split in ("train", "validation", "test")}
    share = Counter(question.split for question in questions)
    assert 0.42 < share["train"] / len(questions) < 0.6
    levels = Counter((question.difficulty, question.split) for question in questions)
    assert all(levels[level, "test"] >= 250 and levels[level, "train"] >= 300 for level in (1, 2, 3, 4))
    unanswerable = Counter(question.split for question in questions if question.kind == "unanswerable")
    assert all(0.17 < unanswerable[split] / levels[3, split] < 0.2 for split in share)


def test_gold_mails_are_visible_when_asked_and_splits_share_no_conversation(
    world: World, questions: list[Question], rows: dict[str, int]
) -> None:
    split_of: dict[int, str] = {}
    for question in questions:
        assert all(rows[gold] < visible(world, question) for gold in question.gold_ids)
        wanted = 0 if question.kind == "unanswerable" else 2 if question.difficulty == 4 else 1
        assert len(set(question.gold_ids)) == wanted
        for gold in question.gold_ids:
            assert split_of.setdefault(world.annotations[gold].thread, question.split) == question.split
    assert any(visible(world, question) < len(world.messages) for question in questions)


def test_questions_stay_in_the_closed_vocabulary_and_are_phrased_in_many_ways(
    world: World, questions: list[Question]
) -> None:
    texts = [text for question in questions for text in (question.text, *question.answers)]
    assert {word for text in texts for word in words_of(text) if word.isalpha()} <= vocabulary()
    company = world.company
    names = {*map(str.lower, company.places), *company.matters, *map(str.lower, language.WEEKDAYS)}
    names |= set.union(*classes(world))
    frames = {
        " ".join("_" if word in names | {*question.keywords} else word for word in words_of(question.text))
        for question in of_level(questions, 1)
    }
    assert len(frames) >= 300


def test_three_identifying_words_of_the_sender_find_the_mail_and_two_do_not(
    world: World, questions: list[Question], rows: dict[str, int], index: WordIndex
) -> None:
    for question in of_level(questions, 1):
        assert len(question.keywords) == 3
        seen, gold = (1 << visible(world, question)) - 1, rows[question.gold_ids[0]]
        assert index.holding_all(question.keywords, seen) == 1 << gold
        for pair in combinations(question.keywords, 2):
            assert index.holding_all(pair, seen).bit_count() >= 5
        message = world.messages[gold]
        own = message.body[: world.annotations[message.message_id].own]
        assert set(question.keywords) <= set(words_of(f"{message.subject} {own}"))
        words = words_of(question.text)
        assert 12 <= len(words) <= 30
        assert tuple(dict.fromkeys(word for word in words if word in question.keywords)) == question.keywords
        noise = set.union(*classes(world)).intersection(words).difference(question.keywords)
        assert not noise & set(words_of(f"{message.subject} {message.body}"))


def classes(world: World) -> list[set[str]]:
    """The words that may identify a mail: topics, projects, things, names."""
    topics = {topic for kind in KINDS for topic in kind.topics}
    projects = {project.name.lower() for project in world.company.projects}
    names = {word.lower() for one in world.company.staff for word in (one.first, one.last)}
    return [topics, projects, set(world.company.things), names]


def test_words_of_no_use_are_of_the_same_classes_as_identifying_ones(
    world: World, questions: list[Question]
) -> None:
    asked = [(set(words_of(question.text)), {*question.keywords}) for question in of_level(questions, 1)]
    for words in classes(world):
        identifying = sum(len(words & keywords) for _, keywords in asked)
        assert 0.25 < identifying / sum(len(words & text) for text, _ in asked) < 0.75


def test_the_store_finds_the_mail_by_its_identifying_words(
    questions: list[Question], store: MailStore
) -> None:
    for question in of_level(questions, 1)[:150]:
        query = " ".join(question.keywords)
        hits = store.search(query, mailbox=question.mailbox, until=question.asked_on)
        assert store.find(question.gold_ids[0]) == hits[0].row


def test_look_alikes_share_sender_or_conversation(world: World, questions: list[Question]) -> None:
    second = of_level(questions, 2)
    acts = Counter(world.annotations[question.gold_ids[0]].act for question in second)
    assert acts["status"] > 20
    assert acts["reminder"] > 5
    assert acts["open"] > 20


def test_the_last_statement_of_a_fact_is_the_answer(world: World, questions: list[Question]) -> None:
    corrected = 0
    for question in (one for one in questions if one.kind == "fact"):
        gold = question.gold_ids[0]
        fact = next(
            fact
            for fact in world.facts
            if any(one == gold for one, _, _ in fact.statements) and fact.value_type == question.answer_type
        )
        seen = [item for item in fact.statements if item[1] <= question.asked_on]
        assert seen[-1][0] == gold
        shown = world.annotations[gold].sender.style.show(seen[-1][2], fact.value_type)
        assert matches(shown, question.answers, question.answer_type)
        corrected += len(seen) > 1
    assert corrected > 20


def test_no_visible_mail_answers_an_unanswerable_question(
    world: World, questions: list[Question], index: WordIndex
) -> None:
    nothing = [question for question in questions if question.kind == "unanswerable"]
    assert len(nothing) > 50
    for question in nothing:
        seen = (1 << visible(world, question)) - 1
        assert index.holding_all(question.keywords, seen) == 0
        assert all(index.holding_all(pair, seen) for pair in combinations(question.keywords, 2))
        assert question.answers == ()


def test_known_items_of_any_mailbox_are_found_by_their_identifying_words(store: MailStore) -> None:
    made = known_item_questions(store, np.random.default_rng(3), 120)
    assert len({question.gold_ids for question in made}) == 120
    assert made == known_item_questions(store, np.random.default_rng(3), 120)
    for question in made:
        row = store.find(question.gold_ids[0])
        hits = store.search(" ".join(question.keywords), until=question.asked_on, limit=100)
        best = [hit.row for hit in hits if hit.matched == 3]
        assert row in best
        assert (len(best) == 1) == (question.difficulty == 1)


def test_known_items_of_any_mailbox_are_decided_by_no_search_for_all_words(store: MailStore) -> None:
    made = known_item_questions(store, np.random.default_rng(3), 120)
    splits, found = defaultdict[str, set[str]](set), 0
    for question in made:
        first, *_ = store.search(question.text, until=question.asked_on)
        found += store.message_id(first.row) == question.gold_ids[0]
        subject = store.message(store.find(question.gold_ids[0])).subject
        splits[subject.removeprefix("Re: ").lower()].add(question.split)
    assert found < 0.5 * len(made)
    assert len(splits) < len(made)
    assert all(len(of_conversation) == 1 for of_conversation in splits.values())


@pytest.mark.parametrize(
    ("letters", "name"),
    [
        ("абвгдежзикл", "Иван Петров"),
        ("αβγδεζηθικλ", "Νίκος"),
        ("天地玄黄宇宙洪荒", "王伟"),
        ("กขคงจฉชซ", "สมชาย"),
    ],
)
def test_mail_of_any_script_or_date_gets_questions(letters: str, name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(letters), 5)) for _ in range(300)]
    days, who = (None, datetime(2024, 1, 1, tzinfo=UTC)), Address(name, "a@b.example")
    messages = [Message(f"m{n}", days[n % 2], who, body=" ".join(rng.choice(words, 60))) for n in range(50)]
    store = written(tmp_path / "box.db", messages)
    made = known_item_questions(store, rng, 20)
    assert len(made) == 20
    assert {int(question.gold_ids[0][1:]) % 2 for question in made} == {0, 1}
    for question in made:
        hits = store.search(" ".join(question.keywords), until=question.asked_on)
        best = [store.message_id(hit.row) for hit in hits if hit.matched == 3]
        assert question.gold_ids[0] in best[: 1 if question.difficulty == 1 else None]


def test_a_mailbox_that_is_too_small_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"about the 0 mails of .*empty\.db"):
        known_item_questions(written(tmp_path / "empty.db", []), np.random.default_rng(0), 5)


def test_questions_come_back_from_a_file(questions: list[Question], store: MailStore, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    chosen = questions[::50]
    path.write_text("\n".join(json.dumps(question.to_json()) for question in chosen) + "\n\n")
    assert read_questions(path, store) == chosen
    _, tasks = open_collection(store.path, path, world_seed=0, difficulty=None)
    assert [task.id for task in tasks] == [question.id for question in chosen]


def test_the_questions_in_the_guide_are_questions() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/email.md").read_text(encoding="utf-8")
    lines = guide.split("```json\n")[1].split("```")[0].splitlines()
    assert [Question.from_json(json.loads(line)).difficulty for line in lines] == [1, 3, 3, 3]


def test_own_questions_may_be_short_and_for_evaluation_alone_and_are_read_again(
    world: World, store: MailStore, tmp_path: Path
) -> None:
    path, gold = tmp_path / "own.jsonl", [world.messages[7].message_id]
    for text in ("Where is it?", "And now?"):
        path.write_text(json.dumps({"id": "q", "text": text, "kind": "known_item", "gold_ids": gold}))
        env = EmailEnv(mailbox=store.path, questions=path)
        assert env.reset(options={"split": "test"})[0].endswith(text)
    with pytest.raises(UnknownTaskError, match="no split `train`; known: `test`"):
        env.reset()
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"own\.jsonl: there is no question in it"):
        EmailEnv(mailbox=store.path, questions=path)
    other = Question.from_json({"id": "q", "text": "Where?", "kind": "known_item", "gold_ids": ["gone"]})
    with pytest.raises(ValueError, match=r"question q: gold_ids: world\.db has no mail 'gone'"):
        EmailEnv(mailbox=store.path, questions=[other])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "not list"),
        ('{"id": "q"}', "text: it is missing"),
        ({"kind": ["riddle"]}, "kind: it must be one of"),
        ({"text": " "}, "text: it must be a text that is not empty"),
        ({"asked_on": "May"}, "asked_on: it must be null or a time, as in 2001-03-16T09:30, not 'May'"),
        ({"asked_on": "1999-01-01"}, "asked_on: nobody sees mail .* at 1999-01-01 00:00"),
        ({"gold_ids": "<1@x>"}, r"gold_ids: it must be a list of texts, as in \[\"one\"\], not '<1@x>'"),
        ({"gold_ids": []}, "gold_ids: it must be a list of 1 or more Message-IDs for kind known_item"),
        ({"gold_ids": ["1@x"]}, r"gold_ids: world\.db has no mail '1@x'"),
        ({"answers": ["yes"]}, "answers: it must be left out for kind known_item"),
        ({"kind": "fact"}, "answers: it must be a list of accepted answers for kind fact"),
        ({"kind": "two_messages"}, "gold_ids: it must be a list of 2 or more"),
        ({"kind": "unanswerable"}, "gold_ids: it must be left out for kind unanswerable"),
        ({"kind": "fact", "answers": ["yes"]}, "answer_type: it must be one of person, .* for kind fact"),
        ({"difficulty": True}, "difficulty: it must be a whole number"),
        ({"answer_type": "sum"}, "answer_type: it must be null or one of"),
        ({"split": "tets"}, "split: it must be one of train, validation, test"),
        ({"mailbox": 3}, "mailbox: it must be"),
        ({"id": "q"}, r"id: 'q' is the id of .*questions\.jsonl, line 1, too"),
        ('"caf\udce9"', "'utf-8' codec can't decode byte 0xe9"),
        ({"asked_on": "0001-01-01T00:00+05:00"}, "asked_on: it must be null or a time"),
        ({"kind": "fact", "answers": ["No"], "answer_type": "text"}, "graded as text, .* not even 'No'"),
        ({"kind": "fact", "answers": ["soon"], "answer_type": "date"}, "answers: graded as date"),
        ({"mailbox": "me"}, r"mailbox: world\.db has no 'me'"),
        ({"colour": "red"}, "colour: a question has no such field"),
    ],
)
def test_a_line_that_is_no_question_is_named(
    questions: list[Question], store: MailStore, tmp_path: Path, change: str | dict[str, Any], words: str
) -> None:
    asked = questions[0].to_json()
    line = change if isinstance(change, str) else json.dumps(asked | change)
    path = tmp_path / "questions.jsonl"
    first = json.dumps(asked | {"id": "q"})
    path.write_bytes(f"\ufeff{first}\n{line}".encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=rf"questions\.jsonl, line 2: .*{words}"):
        read_questions(path, store)


@pytest.mark.e2e
def test_the_world_is_made_once_and_opened_once_and_is_the_same_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, _ = open_collection(None, None, world_seed=3, difficulty=None)
    monkeypatch.setenv("ART_GYM_CACHE", str(tmp_path))
    path = world_path(3)
    made = path.stat().st_mtime_ns
    assert path.parent == tmp_path
    assert world_path(3) == path
    assert path.stat().st_mtime_ns == made
    first, second = (open_collection(None, None, world_seed=3, difficulty=None) for _ in range(2))
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert first[0].meta["questions"] == usual.meta["questions"]
    assert [first[0].message(row) for row in (1, 5000)] == [usual.message(row) for row in (1, 5000)]


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ART_GYM_CACHE", str(blocked / "below"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    path = world_path(4)
    assert path.parent == tmp_path / "tmp" / "art-gym"
    assert path.exists()
