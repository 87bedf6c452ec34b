import json
import sqlite3
from bisect import bisect_right
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from art_gym.envs.mail.grading import matches
from art_gym.envs.mail.questions import (
    Question,
    known_item_questions,
    load_annotated_qa,
    load_art_e,
    world_questions,
)
from art_gym.envs.mail.questions_index import WordIndex, words_of
from art_gym.envs.mail.store import MailStore, MailStoreWriter
from art_gym.envs.mail.world import World, generate, vocabulary

DATA = Path(__file__).parents[3] / "shared" / "data" / "email"


@pytest.fixture(scope="module")
def world() -> World:
    return generate(5)


@pytest.fixture(scope="module")
def questions(world: World) -> list[Question]:
    return world_questions(world, np.random.default_rng(1))


@pytest.fixture(scope="module")
def store(world: World, tmp_path_factory: pytest.TempPathFactory) -> MailStore:
    path = tmp_path_factory.mktemp("box") / "world.db"
    with MailStoreWriter(path) as writer:
        for message in world.messages:
            writer.add(message)
    return MailStore(path)


@pytest.fixture(scope="module")
def rows(world: World) -> dict[str, int]:
    return {message.message_id: row for row, message in enumerate(world.messages)}


@pytest.fixture(scope="module")
def index(world: World) -> WordIndex:
    return WordIndex(world.messages)


def _visible(world: World, question: Question) -> int:
    """How many messages, the first ones, can be seen when the question is asked."""
    return bisect_right(world.messages, question.asked_on, key=lambda message: message.date)


def _first_level(questions: list[Question]) -> list[Question]:
    return [question for question in questions if question.difficulty == 1]


def test_the_same_generator_gives_the_same_questions(world: World, questions: list[Question]) -> None:
    assert world_questions(world, np.random.default_rng(1)) == questions


def test_there_are_enough_questions_of_every_kind_in_every_split(questions: list[Question]) -> None:
    assert len(questions) >= 1500
    assert len({question.id for question in questions}) == len(questions)
    counts = Counter((question.kind, question.split) for question in questions)
    for kind in ("known_item", "fact", "two_messages", "unanswerable"):
        for split in ("train", "validation", "test"):
            assert counts[kind, split] > 0, (kind, split)  # type: ignore[index]
    share = Counter(question.split for question in questions)
    assert 0.63 < share["train"] / len(questions) < 0.77
    assert 0.14 < share["test"] / len(questions) < 0.26
    assert {question.difficulty for question in questions} == {1, 2, 3, 4}


def test_splits_share_no_message_and_no_conversation(world: World, questions: list[Question]) -> None:
    split_of: dict[int, str] = {}
    for question in questions:
        for gold in question.gold_ids:
            assert split_of.setdefault(world.notes[gold].thread, question.split) == question.split


def test_gold_mails_are_visible_when_asked(
    world: World, questions: list[Question], rows: dict[str, int]
) -> None:
    for question in questions:
        count = _visible(world, question)
        assert all(rows[gold] < count for gold in question.gold_ids)
        assert len(set(question.gold_ids)) == (
            0 if question.kind == "unanswerable" else 2 if question.difficulty == 4 else 1
        )
    assert any(_visible(world, question) < len(world.messages) for question in questions)


def test_questions_stay_in_the_closed_vocabulary(questions: list[Question]) -> None:
    known = set(vocabulary())
    used = {word for question in questions for word in words_of(question.text) if not word.isdigit()}
    used |= {word for question in questions for answer in question.answers for word in words_of(answer)}
    assert {word for word in used if word.isalpha()} - known == set()


def test_three_telling_words_find_the_mail_and_two_do_not(
    world: World, questions: list[Question], rows: dict[str, int], index: WordIndex
) -> None:
    known = _first_level(questions)
    assert len(known) > 800
    for question in known:
        assert len(question.telling) == 3
        visible = (1 << _visible(world, question)) - 1
        gold = rows[question.gold_ids[0]]
        assert index.holding_all(question.telling, visible) == 1 << gold
        for pair in combinations(question.telling, 2):
            assert index.holding_all(pair, visible).bit_count() >= 5


def test_the_sender_wrote_the_telling_words_himself(
    world: World, questions: list[Question], rows: dict[str, int]
) -> None:
    for question in _first_level(questions):
        message = world.messages[rows[question.gold_ids[0]]]
        own = message.body[: world.notes[message.message_id].own]
        assert set(question.telling) <= set(words_of(f"{message.subject} {own}"))
        assert 14 <= len(words_of(question.text)) <= 28
        asked = [word for word in words_of(question.text) if word in question.telling]
        assert tuple(dict.fromkeys(asked)) == question.telling


def test_requests_are_phrased_in_many_ways(questions: list[Question], world: World) -> None:
    frames = set()
    names = {word for word in vocabulary() if word in set(_name_words(world))}
    for question in _first_level(questions):
        frames.add(
            " ".join(
                "_" if word in question.telling or word in names else word for word in words_of(question.text)
            )
        )
    assert len(frames) >= 300


def _name_words(world: World) -> list[str]:
    company = world.company
    return [
        *(person.first.lower() for person in company.staff),
        *(place.lower() for place in company.places),
        *company.matters,
        *"monday tuesday wednesday thursday friday".split(),
    ]


def test_the_store_finds_the_mail_by_its_telling_words(
    questions: list[Question], store: MailStore, rows: dict[str, int]
) -> None:
    known = _first_level(questions)[:150]
    found = 0
    for question in known:
        query = " ".join(question.telling)
        hits = store.search(query, mailbox=question.mailbox, until=question.asked_on)
        found += store.find(question.gold_ids[0]) in {hit.row for hit in hits}
    assert found >= 0.97 * len(known)


def test_the_words_of_the_whole_question_find_it_in_a_third_to_half_of_the_cases(
    world: World, questions: list[Question], rows: dict[str, int]
) -> None:
    box = sqlite3.connect(":memory:")
    box.execute("CREATE VIRTUAL TABLE mail USING fts5(subject, people, body)")
    for row, message in enumerate(world.messages):
        people = " ".join(f"{person.name} {person.email}" for person in message.people)
        box.execute(
            "INSERT INTO mail(rowid, subject, people, body) VALUES (?, ?, ?, ?)",
            (row, message.subject, people, message.body),
        )
    known = _first_level(questions)[:80]
    top = 0
    for question in known:
        query = " OR ".join(f'"{word}"' for word in dict.fromkeys(words_of(question.text)))
        best = box.execute(
            "SELECT rowid FROM mail WHERE mail MATCH ? AND rowid < ? ORDER BY bm25(mail, 2, 1, 1) LIMIT 1",
            (query, _visible(world, question)),
        ).fetchone()
        top += best[0] == rows[question.gold_ids[0]]
    box.close()
    assert 0.25 < top / len(known) < 0.55


def test_noise_is_absent_from_the_wanted_mail(
    world: World, questions: list[Question], rows: dict[str, int]
) -> None:
    clean = 0
    known = _first_level(questions)
    for question in known:
        message = world.messages[rows[question.gold_ids[0]]]
        held = set(words_of(f"{message.subject} {message.body}"))
        noise = [word for word in words_of(question.text) if word in world.company.matters]
        clean += not held & set(noise)
    assert clean == len(known)


def test_look_alikes_share_sender_or_conversation(world: World, questions: list[Question]) -> None:
    second = [question for question in questions if question.difficulty == 2]
    assert len(second) >= 200
    acts = Counter(world.notes[question.gold_ids[0]].act for question in second)
    assert acts["status"] > 20
    assert acts["reminder"] > 5
    assert acts["open"] > 20


def test_the_last_word_on_a_fact_is_the_answer(
    world: World, questions: list[Question], rows: dict[str, int]
) -> None:
    corrected = 0
    for question in (one for one in questions if one.kind == "fact"):
        gold = question.gold_ids[0]
        fact = next(
            fact
            for fact in world.facts
            if any(one == gold for one, _, _ in fact.said) and fact.value_type == question.answer_type
        )
        seen = [item for item in fact.said if item[1] <= question.asked_on]
        assert seen[-1][0] == gold
        shown = world.notes[gold].sender.style.show(seen[-1][2], fact.value_type)
        assert matches(shown, question.answers, question.answer_type)
        corrected += len(seen) > 1
    assert corrected > 20


def test_no_visible_mail_answers_an_unanswerable_question(
    world: World, questions: list[Question], index: WordIndex
) -> None:
    nothing = [question for question in questions if question.kind == "unanswerable"]
    assert len(nothing) > 50
    for question in nothing:
        visible = (1 << _visible(world, question)) - 1
        assert index.holding_all(question.telling, visible) == 0
        for pair in combinations(question.telling, 2):
            assert index.holding_all(pair, visible) != 0
        assert question.answers == ()


def test_questions_survive_json(questions: list[Question]) -> None:
    for question in questions[::50]:
        assert Question.from_json(json.loads(json.dumps(question.to_json()))) == question


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "riddle"}, "kind must be one of"),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"text": None}, "field 'text' is missing"),
    ],
)
def test_a_broken_question_is_refused_with_words(
    questions: list[Question], change: dict[str, str | None], words: str
) -> None:
    item = questions[0].to_json() | change
    if item["text"] is None:
        del item["text"]
    with pytest.raises(ValueError, match=words):
        Question.from_json(item)


def test_known_items_of_any_mailbox_are_found_by_their_telling_words(store: MailStore) -> None:
    made = known_item_questions(store, np.random.default_rng(3), 120)
    assert len(made) == 120
    assert made == known_item_questions(store, np.random.default_rng(3), 120)
    for question in made:
        assert question.kind == "known_item"
        row = store.find(question.gold_ids[0])
        hits = store.search(" ".join(question.telling), until=question.asked_on, limit=100)
        best = [hit.row for hit in hits if hit.matched == 3]
        assert row in best
        assert (len(best) == 1) == (question.difficulty == 1)
    golds = [question.gold_ids[0] for question in made]
    assert len(set(golds)) == len(golds)


def test_known_items_of_an_empty_mailbox_are_none(tmp_path: Path) -> None:
    with MailStoreWriter(tmp_path / "empty.db"):
        pass
    assert known_item_questions(MailStore(tmp_path / "empty.db"), np.random.default_rng(0), 5) == []


def _lines(path: Path, *items: object) -> Path:
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), encoding="utf-8")
    return path


def test_art_e_questions_are_read(tmp_path: Path, store: MailStore, world: World) -> None:
    known = f"<{world.messages[9].message_id}>"
    path = _lines(
        tmp_path / "a.jsonl",
        {"question": "When?", "answer": "On Friday", "message_ids": [known], "query_date": "2024-05-01"},
        {"question": "Where?", "answer": None, "message_ids": [known]},
        {"question": "Who?", "answer": "Ann", "message_ids": ["<gone@x>"]},
    )
    questions, report = load_art_e(path, store)
    assert [question.gold_ids for question in questions] == [(world.messages[9].message_id,)]
    assert questions[0].asked_on.isoformat() == "2024-05-02T00:00:00+00:00"
    assert report.read == 3
    assert report.left_out == ((2, "no answer given"), (3, "its mail is not in the store"))
    assert "1 of 3 questions kept" in report.summary()


def test_annotated_questions_must_name_someone_and_be_unique(
    tmp_path: Path, store: MailStore, world: World
) -> None:
    one, two = (message.message_id for message in world.messages[:2])

    def item(question: str, message_id: str, *answers: str) -> dict[str, object]:
        return {
            "question": question,
            "message_id": message_id,
            "answers": answers,
            "is_impossible": not answers,
        }

    path = _lines(
        tmp_path / "b.jsonl",
        item("Who is Ann Lee?", one, "the \n controller"),
        item("Who is Bob?", one),
        item("What is Falcon?", one, "a project"),
        item("What is Falcon?", two, "a bird"),
        item("Who received the email?", one, "Ann"),
        item("Who is Carl?", "gone@x", "nobody"),
    )
    questions, report = load_annotated_qa(path, store)
    assert [(question.text, question.answers) for question in questions] == [
        ("Who is Ann Lee?", ("the controller",))
    ]
    assert [number for number, _ in report.left_out] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: a JSON object is wanted"),
        ('{"question": 7}', "line 2: question must be a text"),
        ('{"question": "x", "message_ids": "m"}', "line 2: message_ids must be a list"),
        (
            '{"question": "x", "answer": "y", "message_ids": ["ID"], "query_date": "May"}',
            "line 2: query_date",
        ),
    ],
)
def test_malformed_lines_are_named(
    tmp_path: Path, store: MailStore, world: World, line: str, words: str
) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text("# a comment\n" + line.replace("ID", world.messages[0].message_id), encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        load_art_e(path, store)


def test_the_annotated_enron_file_holds_127_search_questions(store: MailStore) -> None:
    path = DATA / "enron-annotated-qa.jsonl"
    if not path.exists():
        pytest.skip("the annotated Enron questions are not on this machine")
    _, report = load_annotated_qa(path, store)
    reasons = Counter(reason for _, reason in report.left_out)
    assert report.read == 674
    assert reasons["its mail is not in the store"] == 127
