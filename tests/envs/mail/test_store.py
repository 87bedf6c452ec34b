"""The mail store: what is written, searched and shared."""

import copy
import multiprocessing
import os
import pickle
import sqlite3
import threading
import unicodedata
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.envs.mail.message import Address, Message, bare_id
from art_gym.envs.mail.store.store import Hit, MailStore, MailStoreWriter, query_words
from art_gym.envs.mail.words import snippet
from tests.envs.mail.boxes import written

ANN = Address("Ann Berg", "ann.berg@north.example")
BOB = Address("Bob Öst", "bob@south.example")
CEM = Address("", "cem.berger@west.example")


def mail(number: int, subject: str, body: str, **changes: object) -> Message:
    start = datetime(2024, 1, 1, 12, tzinfo=UTC)
    fields: dict[str, object] = {
        "message_id": f"<{number}@x>",
        "date": start + timedelta(days=number),
        "sender": ANN,
        "to": (BOB,),
        "subject": subject,
        "body": body,
        "mailboxes": ("ann",),
    }
    return Message(**(fields | changes))  # type: ignore[arg-type]


MAILS = [
    mail(5, "Budget", "the budget for the harbour bridge"),
    mail(1, "Bridge", "the harbour is closed", sender=BOB, to=(ANN, CEM), mailboxes=("ann", "bob")),
    mail(2, "Lunch", "bridge club at noon", sender=CEM, cc=(ANN,), mailboxes=("bob",)),
    mail(3, "Ärger im Café", "naïve résumé, über alles", mailboxes=("bob",)),
    mail(4, "Undated budget", "harbour harbour bridge budget", date=None),
    mail(6, "Re: plan", "nothing of note", sender=BOB, to=(), bcc=(CEM,)),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MailStore:
    return written(tmp_path_factory.mktemp("store") / "box.db", MAILS, source="test")


def ids(store: MailStore, *query: str, **filters: Any) -> list[str]:
    hits = store.search(*(query or ("",)), limit=10, **filters)
    return [store.message_id(hit.row) for hit in hits]


def test_messages_come_back_as_they_were_in_order_of_date_undated_first(store: MailStore) -> None:
    assert len(store) == 6
    assert [store.message_id(row) for row in store.rows()] == ["4@x", "1@x", "2@x", "3@x", "5@x", "6@x"]
    for message in MAILS:
        row = store.find(message.message_id)
        assert row is not None
        back = store.message(row)
        assert back.message_id == bare_id(message.message_id)
        for field in ("date", "sender", "to", "cc", "bcc", "subject", "body", "mailboxes"):
            assert getattr(back, field) == getattr(message, field), field
        assert store.header(row) == (row, message.date, message.sender, message.subject)
    assert store.find("<5@x>") == store.find("5@x") == store.find(" 5@x ")
    assert store.find("nobody@x") is None
    assert store.mailboxes() == [("ann", 4), ("bob", 3)]
    assert store.meta == {"source": "test"}
    assert [store.document_frequency(word) for word in ("Harbour", "nowhere", "?")] == [3, 0, 0]


def test_a_copy_is_the_same_row_under_another_id(tmp_path: Path) -> None:
    first = mail(1, "Plan  for X", "Some text\nover lines", duplicate_ids=("<extra@x>",))
    assert first.date
    late, later = first.date + timedelta(seconds=70), first.date + timedelta(hours=1)
    same = "Some text over lines"
    mails = [
        (first, True),
        (mail(2, "plan for x", f"{same} ", date=late, mailboxes=("Bob",)), False),
        (mail(3, "plan for x", "Some other text", date=late), True),
        (mail(4, "plan for x", same, date=late, sender=BOB), True),
        (mail(5, "plan for x", same, date=later), True),
    ]
    with MailStoreWriter(tmp_path / "box.db") as writer:
        assert [writer.add(message) for message, _ in mails] == [new for _, new in mails]
    box = MailStore(tmp_path / "box.db")
    row = box.find("1@x")
    assert row is not None
    assert row == box.find("2@x") == box.find("<extra@x>")
    back = box.message(row)
    assert (back.ids[0], set(back.duplicate_ids), back.mailboxes) == (
        "1@x",
        {"extra@x", "2@x"},
        ("ann", "bob"),
    )
    assert row in box.rows("bob")


def test_one_message_id_on_two_texts_leads_to_the_first(tmp_path: Path) -> None:
    second = mail(1, "two", "second", date=datetime(2025, 1, 1, tzinfo=UTC))
    box = written(
        tmp_path / "box.db", [mail(1, "one", "first"), second, mail(1, "three", "third", message_id="")]
    )
    found = [box.message_id(row) for row in box.rows()]
    assert len(set(found)) == 3
    assert all(box.find(name) == row for row, name in enumerate(found, 1))
    assert box.header(box.find("1@x") or 0).subject == "one"


def test_text_that_sqlite_cannot_hold_is_cleaned(tmp_path: Path) -> None:
    odd = "a\0b \ud800 \udcff é"
    box = written(
        tmp_path / "box.db", [mail(1, odd, odd, sender=Address(odd, odd), folders=(odd,), message_id=odd)]
    )
    assert box.message(1).body == "a b \ufffd \ufffd é"
    assert box.search("é")[0].matched == 1


def test_the_store_is_the_same_whatever_the_order_of_adding(tmp_path: Path, store: MailStore) -> None:
    order = np.random.default_rng(3).permutation(len(MAILS))
    other = written(tmp_path / "b", [MAILS[i] for i in order])
    assert [other.message(row) for row in other.rows()] == [store.message(row) for row in store.rows()]
    assert _search(other) == _search(store)


def test_an_empty_store_works(tmp_path: Path) -> None:
    box = written(tmp_path / "box.db", [])
    assert len(box) == 0
    assert box.search("x") == box.search("") == box.search("", until=datetime.now(UTC)) == []
    assert list(box.rows()) == []


def _write_and_interrupt(path: Path) -> None:
    with MailStoreWriter(path) as writer:
        writer.add(mail(2, "new", "new"))
        raise KeyboardInterrupt


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "box.db"
    written(path, [mail(1, "old", "old")])
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _write_and_interrupt(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["box.db"]
    assert written(path, [mail(2, "new", "new")]).header(1).subject == "new"
    assert os.listdir(tmp_path) == ["box.db"]


def test_the_writer_says_what_is_wrong(tmp_path: Path) -> None:
    for path, error in ((tmp_path / "no" / "box.db", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match="cannot write"), MailStoreWriter(path):
            pass
    with pytest.raises(RuntimeError, match="with MailStoreWriter"):
        MailStoreWriter(tmp_path / "box.db").add(MAILS[0])


def test_opening_says_what_is_wrong(tmp_path: Path, store: MailStore) -> None:
    with pytest.raises(FileNotFoundError, match=r"art-gym mail import PATH --out '.*/not here.db'"):
        MailStore(tmp_path / "not here.db")
    (tmp_path / "text.db").write_text("hello")
    (tmp_path / "cut.db").write_bytes(store.path.read_bytes()[:4096])
    for name, statement in (("other.db", "CREATE TABLE t (x)"), ("later.db", "PRAGMA user_version = 99")):
        if name == "later.db":
            (tmp_path / name).write_bytes(store.path.read_bytes())
        with sqlite3.connect(tmp_path / name) as db:
            db.execute(statement)
        db.close()
    for name, words in (
        ("text.db", "not a mail store"),
        ("other.db", "not a mail store"),
        ("cut.db", r"cut\.db is damaged \(database disk image is malformed\): import the mail again"),
        ("later.db", "version 99"),
        (".", "is a folder"),
    ):
        with pytest.raises(ValueError, match=words):
            MailStore(tmp_path / name)


def test_all_words_first_then_most_words_then_bm25(store: MailStore) -> None:
    hits = store.search("harbour bridge budget")
    assert [hit.matched for hit in hits] == [3, 3, 2, 1]
    assert hits[0].score >= hits[1].score
    assert [store.header(hit.row).subject for hit in hits[2:]] == ["Bridge", "Lunch"]
    with sqlite3.connect(store.path) as db:
        query = "SELECT rowid, -bm25(words, 2.0, 1.0, 1.0) FROM words WHERE words MATCH ?"
        expected = dict(db.execute(query, ('"harbour" OR "bridge" OR "budget"',)))
    assert {hit.row: hit.score for hit in hits} == pytest.approx(expected)


def test_ties_are_broken_by_row_and_a_word_in_the_subject_weighs_more(tmp_path: Path) -> None:
    same = (mail(number, "same", f"text {number // 99}") for number in reversed(range(1, 30)))
    zebras = (mail(98, "plain words", "one zebra here"), mail(99, "one zebra here", "plain words"))
    box = written(tmp_path / "box.db", [*same, *zebras])
    assert [hit.row for hit in box.search("same text", limit=7)] == [1, 2, 3, 4, 5, 6, 7]
    assert ids(box, "zebra") == ["99@x", "98@x"]


@pytest.mark.parametrize(
    ("side", "who", "expected"),
    [
        ("sender", "ann", "345"),
        ("sender", "BERG", "2345"),
        ("sender", "ann berg", "345"),
        ("sender", "ann.berg@north.example", "345"),
        ("sender", "ost", "16"),
        ("sender", "erg", ""),
        ("sender", "ann bob", ""),
        ("sender", "@", ""),
        ("sender", "", "123456"),
        ("recipient", "cem", "16"),
        ("recipient", "ann", "12"),
        ("recipient", "ann cem", ""),
    ],
)
def test_people_match_by_the_beginnings_of_words_of_one_person(
    store: MailStore, side: str, who: str, expected: str
) -> None:
    assert sorted(ids(store, **{side: who})) == [f"{number}@x" for number in expected]


def test_dates_are_inclusive_days_and_leave_out_the_undated(store: MailStore) -> None:
    assert ids(store, after=date(2024, 1, 2), before=date(2024, 1, 4)) == ["3@x", "2@x", "1@x"]
    for bounds, count in (
        ({"after": date(2024, 2, 1)}, 0),
        ({"before": date(2023, 1, 1)}, 0),
        ({"before": date.max}, 5),
        ({"after": date.min}, 5),
        ({"after": date(2024, 1, 4), "before": date(2024, 1, 2)}, 0),
    ):
        assert len(ids(store, **bounds)) == count


def test_an_empty_query_lists_the_newest_and_limits_hold(store: MailStore) -> None:
    assert [(store.message_id(hit.row), hit.matched) for hit in store.search(" ?! ", limit=2)] == [
        ("6@x", 0),
        ("5@x", 0),
    ]
    assert [len(store.search("harbour bridge budget", limit=limit)) for limit in (1, 0, -3)] == [1, 0, 0]


def test_nothing_outside_the_mailbox_or_later_than_until_is_ever_found(store: MailStore) -> None:
    until = datetime(2024, 1, 4, 12, tzinfo=UTC)
    for query in ("", "harbour bridge budget", "the"):
        for box in (None, "ann", "bob", "BOB"):
            rows = {hit.row for hit in store.search(query, mailbox=box, until=until, limit=10)}
            for found in map(store.message, rows):
                assert found.date is None or found.date <= until
                assert box is None or box.lower() in found.mailboxes
            assert rows <= set(store.rows(box, until))
            assert query or rows == set(store.rows(box, until))
    assert "4@x" in ids(store, until=until)  # it has no date
    assert "3@x" not in {store.message_id(row) for row in store.rows(until=until - timedelta(seconds=1))}
    for same in (until.astimezone(timezone(timedelta(hours=-9))), until.replace(tzinfo=None)):
        assert ids(store, until=same) == ids(store, until=until)


def test_unknown_rows_and_mailboxes_are_named(store: MailStore) -> None:
    for read in (store.message, store.header, store.message_id, lambda row: store.snippet(row, [])):
        with pytest.raises(KeyError, match="rows 1 to 6"):
            read(7)
    with pytest.raises(ValueError, match="did you mean `bob`"):
        store.search("x", mailbox="bobb")


ODD_QUERIES = [
    "a-b", "o'neil", '"', "AND", "", "NOT", "NEAR(a b)", "a*", "^a", "subject:x", "(", ")", "{a}", "a + b",
    "\0", "a\0b", "\ud800", "'; DROP TABLE messages; --", "%", "_", "*", "\\", "a:b:c", "\U0001f600", "é",
    "ﬁ", "İ", "日本語", "x" * 10_000, "a b " * 5_000, "\u0301", "\ue000", "-", "--", '""""', "OR OR OR",
    "\n\t\r",
]  # fmt: skip
ANY_TEXT = (
    st.sampled_from(ODD_QUERIES)
    | st.text(st.characters(codec=None), max_size=40)
    | st.text(st.sampled_from("\"*^(){}:+-'abé \0ANDOR"), max_size=20)
)


@given(query=ANY_TEXT, who=ANY_TEXT)
@settings(max_examples=250)
def test_no_text_makes_a_search_raise(store: MailStore, query: str, who: str) -> None:
    for hit in store.search(query, limit=50):
        assert 0 <= hit.matched <= len(query_words(query))
    store.search(query, sender=who, recipient=query, mailbox="ann")
    store.snippet(1, query_words(query))
    store.find(query)
    store.document_frequency(query)


def fts5_words(texts: list[str]) -> list[list[str]]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='unicode61 remove_diacritics 2')")
    db.execute("CREATE VIRTUAL TABLE v USING fts5vocab(t, instance)")
    db.executemany("INSERT INTO t(rowid, x) VALUES (?, ?)", enumerate(texts, 1))
    found: list[list[str]] = [[] for _ in texts]
    for term, row in db.execute("SELECT term, doc FROM v ORDER BY doc, offset"):
        found[row - 1].append(term)
    db.close()
    return found


def test_words_are_those_of_fts5() -> None:
    texts = [
        "Budget-2024: o'neil's e-mail_address (v1.2)",
        "Ärger im CAFÉ, naïve Müller; Łódź façade señor Ørsted",
        "Ελληνικά Привет мир שלום 日本語 テスト ünïcödé",
        "cafe\u0301 x\u0327y A\u030a",
        "100% of $5.00 & a@b.org <c>",
    ]
    for text, expected in zip(texts, fts5_words(texts), strict=True):
        assert query_words(text) == list(dict.fromkeys(expected)), text


def test_every_letter_of_european_scripts_folds_as_in_fts5() -> None:
    letters = [chr(code) for code in range(0x20, 0x250)] + [chr(code) for code in range(0x370, 0x530)]
    letters = [letter for letter in letters if unicodedata.category(letter) != "Cn"]
    texts = [f"a{letter}b" for letter in letters]
    # ISO 8859 and Windows code pages hold none of these: rare letters that differ by Unicode version.
    differ = [
        letter
        for letter, text, expected in zip(letters, texts, fts5_words(texts), strict=True)
        if query_words(text) != list(dict.fromkeys(expected))
    ]
    assert len(differ) <= 10, "".join(differ)
    for page in ("latin-1", "iso8859-2", "iso8859-9", "iso8859-15", "cp1252"):
        assert not set(differ) & set(bytes(range(32, 256)).decode(page, "ignore")), page


def test_snippets_show_the_best_cluster(store: MailStore) -> None:
    text = "alpha " + "filler " * 100 + "alpha and beta near gamma " + "filler " * 100 + "beta"
    line = snippet(text, ["alpha", "beta", "gamma"])
    assert "alpha and beta near gamma" in line
    assert (line[0], line[-1]) == ("…", "…")
    assert snippet("Short\n\n  text", ["x"]) == "Short text"
    assert snippet("", ["x"]) == ""
    assert "Café" in snippet("filler " * 30 + "im Café\tdort", query_words("CAFE"))
    assert snippet("cats " * 30 + "cat", ["cat"]).endswith("cat")
    assert store.snippet(store.find("5@x") or 0, ["harbour"]) == "the budget for the harbour bridge"


@given(text=st.text(max_size=300), words=st.lists(st.text(max_size=8), max_size=4))
@settings(max_examples=150)
def test_snippets_are_one_short_line(text: str, words: list[str]) -> None:
    line = snippet(text, query_words(" ".join(words)))
    assert "\n" not in line
    assert len(line) <= 60 + 2 * 12 + 2 + max((len(word) for word in words), default=0)


def _search(store: MailStore) -> list[Hit]:
    return store.search("harbour bridge budget")


def test_copies_and_pickles_share_the_file_not_the_mail(store: MailStore) -> None:
    assert copy.deepcopy(store) is store
    data = pickle.dumps(store)
    assert len(data) < 500
    assert _search(pickle.loads(data)) == _search(store)


def test_a_store_written_anew_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "box.db"
    written(path, [mail(1, "old", "old")])
    old = MailStore(path)
    written(path, [mail(1, "new", "new words")])
    assert [box.header(1).subject for box in (old, MailStore(path))] == ["old", "new"]


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_and_threads_read_the_store_at_once(store: MailStore, method: str) -> None:
    expected = _search(store)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(_search, [store] * 4)) == [expected] * 4
    results: list[list[Hit]] = []
    box = MailStore(store.path)
    threads = [threading.Thread(target=lambda: results.append(_search(box))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8
