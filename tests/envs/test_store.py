import copy
import multiprocessing
import os
import pickle
import sqlite3
import threading
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_gym.envs.mail.message import Address, Message, bare_id
from art_gym.envs.mail.store import Hit, MailStore, MailStoreWriter, open_store, query_words
from art_gym.envs.mail.words import snippet

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
    path = tmp_path_factory.mktemp("store") / "box.db"
    with MailStoreWriter(path, {"source": "test"}) as writer:
        for message in MAILS:
            assert writer.add(message)
    return MailStore(path)


def subjects(store: MailStore, hits: list[Hit]) -> list[str]:
    return [store.header(hit.row).subject for hit in hits]


def test_rows_are_in_order_of_date_with_undated_first(store: MailStore) -> None:
    assert len(store) == 6
    found = [store.message(row).message_id for row in store.rows()]
    assert found == ["4@x", "1@x", "2@x", "3@x", "5@x", "6@x"]


def test_a_message_comes_back_as_it_was(store: MailStore) -> None:
    for message in MAILS:
        row = store.find(message.message_id)
        assert row is not None
        back = store.message(row)
        assert back.message_id == bare_id(message.message_id)
        for field in ("date", "sender", "to", "cc", "bcc", "subject", "body", "mailboxes"):
            assert getattr(back, field) == getattr(message, field), field
        assert store.header(row) == (row, message.date, message.sender, message.subject)
        assert store.message_id(row) == back.message_id


def test_all_words_first_then_most_words_then_bm25(store: MailStore) -> None:
    hits = store.search("harbour bridge budget")
    assert [hit.matched for hit in hits] == [3, 3, 2, 1]
    assert [hit.score for hit in hits[:2]] == sorted((hit.score for hit in hits[:2]), reverse=True)
    assert subjects(store, hits)[2:] == ["Bridge", "Lunch"]


def test_scores_are_those_of_fts5(store: MailStore) -> None:
    with sqlite3.connect(store.path) as db:
        expected = dict(
            db.execute(
                "SELECT rowid, -bm25(words, 2.0, 1.0, 1.0) FROM words WHERE words MATCH ?",
                ('"harbour" OR "bridge" OR "budget"',),
            )
        )
    hits = store.search("harbour bridge budget", limit=10)
    assert {hit.row for hit in hits} == set(expected)
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.row])


def test_a_word_in_the_subject_weighs_more(tmp_path: Path) -> None:
    with MailStoreWriter(tmp_path / "box.db") as writer:
        writer.add(mail(1, "plain words", "one zebra here"))
        writer.add(mail(2, "one zebra here", "plain words"))
        for number in range(3, 20):
            writer.add(mail(number, "others", f"filler {number}"))
    box = MailStore(tmp_path / "box.db")
    assert subjects(box, box.search("zebra")) == ["one zebra here", "plain words"]


def test_ties_are_broken_by_row(tmp_path: Path) -> None:
    with MailStoreWriter(tmp_path / "box.db") as writer:
        for number in reversed(range(1, 30)):
            writer.add(mail(number, "same", "text"))
    box = MailStore(tmp_path / "box.db")
    assert [hit.row for hit in box.search("same text", limit=7)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("ann", {"5@x", "3@x", "4@x"}),
        ("BERG", {"5@x", "3@x", "4@x", "2@x"}),
        ("ann berg", {"5@x", "3@x", "4@x"}),
        ("ann.berg@north.example", {"5@x", "3@x", "4@x"}),
        ("ost", {"1@x", "6@x"}),
        ("erg", set()),
        ("ann bob", set()),
        ("@", set()),
        ("", {"1@x", "2@x", "3@x", "4@x", "5@x", "6@x"}),
    ],
)
def test_sender_matches_the_beginnings_of_words(store: MailStore, who: str, expected: set[str]) -> None:
    hits = store.search("", sender=who, limit=10)
    assert {store.message(hit.row).message_id for hit in hits} == expected


def test_recipient_words_must_belong_to_one_person(store: MailStore) -> None:
    def ids(who: str) -> set[str]:
        return {store.message(hit.row).message_id for hit in store.search("", recipient=who, limit=10)}

    assert ids("cem") == {"1@x", "6@x"}
    assert ids("ann") == {"1@x", "2@x"}
    assert ids("ann cem") == set()


def test_dates_are_inclusive_days_and_leave_out_the_undated(store: MailStore) -> None:
    hits = store.search("", after=date(2024, 1, 2), before=date(2024, 1, 4), limit=10)
    assert [store.message(hit.row).message_id for hit in hits] == ["3@x", "2@x", "1@x"]
    assert store.search("", after=date(2024, 2, 1)) == []
    assert store.search("", before=date(2023, 1, 1)) == []
    assert len(store.search("", before=date.max, limit=10)) == 5
    assert len(store.search("", after=date.min, limit=10)) == 5
    assert store.search("", after=date(2024, 1, 4), before=date(2024, 1, 2)) == []


def test_an_empty_query_lists_the_newest(store: MailStore) -> None:
    hits = store.search(" ?! ", limit=2)
    assert [store.message(hit.row).message_id for hit in hits] == ["6@x", "5@x"]
    assert [hit.matched for hit in hits] == [0, 0]


def test_nothing_outside_mailbox_or_later_than_until_is_ever_found(store: MailStore) -> None:
    until = datetime(2024, 1, 4, 12, tzinfo=UTC)
    for query in ("", "harbour bridge budget", "the"):
        for box in (None, "ann", "bob", "BOB"):
            hits = store.search(query, mailbox=box, until=until, limit=10)
            for hit in hits:
                found = store.message(hit.row)
                assert found.date is not None
                assert found.date <= until
                assert box is None or box.lower() in found.mailboxes
                assert store.visible(hit.row, box, until)
            everything = set(store.rows(box, until))
            assert {hit.row for hit in hits} <= everything
            assert query or {hit.row for hit in hits} == everything
    moment = until - timedelta(seconds=1)
    assert "3@x" not in {store.message(row).message_id for row in store.rows(until=moment)}
    assert not store.visible(99)
    assert not store.visible(0)


def test_until_may_be_in_any_zone(store: MailStore) -> None:
    utc = datetime(2024, 1, 4, 12, tzinfo=UTC)
    other = utc.astimezone(timezone(timedelta(hours=-9)))
    assert store.search("", until=other, limit=9) == store.search("", until=utc, limit=9)
    assert store.search("", until=utc.replace(tzinfo=None), limit=9) == store.search("", until=utc, limit=9)


def test_limits(store: MailStore) -> None:
    assert store.search("harbour", limit=0) == []
    assert store.search("harbour", limit=-3) == []
    assert len(store.search("harbour bridge budget", limit=1)) == 1


ODD_QUERIES = [
    "a-b", "o'neil", '"', "AND", "", "NOT", "NEAR(a b)", "a*", "^a", "subject:x", "(", ")", "{a}", "a + b",
    "\0", "a\0b", "\ud800", "'; DROP TABLE messages; --", "%", "_", "*", "\\", "a:b:c", "\U0001f600", "é",
    "ﬁ",
    "İ", "日本語",
    "x" * 10_000, "a b " * 5_000, "\u0301", "\ue000", "-", "--", '""""', "OR OR OR", "\n\t\r",
]  # fmt: skip


@pytest.mark.parametrize("query", ODD_QUERIES, ids=range(len(ODD_QUERIES)))
def test_odd_queries_do_not_raise(store: MailStore, query: str) -> None:
    assert store.search(query, sender=query) == [] or not query_words(query)
    store.search(query, recipient=query, mailbox="ann")
    store.find(query)
    store.document_frequency(query)


ANY_TEXT = st.text(st.characters(codec=None), max_size=40) | st.text(
    st.sampled_from("\"*^(){}:+-'abé \0ANDOR"), max_size=20
)


@given(query=ANY_TEXT, who=ANY_TEXT)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_makes_a_search_raise(store: MailStore, query: str, who: str) -> None:
    plain = store.search(query, limit=50)
    assert len(plain) <= len(store)
    for hit in plain:
        assert 0 <= hit.matched <= len(query_words(query))
    store.search(query, sender=who, recipient=query)
    store.snippet(1, query_words(query))


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
    # ISO 8859 and Windows code pages hold none of these: rare letters where Unicode versions differ.
    differ = [
        letter
        for letter, text, expected in zip(letters, texts, fts5_words(texts), strict=True)
        if query_words(text) != list(dict.fromkeys(expected))
    ]
    assert len(differ) <= 10, "".join(differ)
    for page in ("latin-1", "iso8859-2", "iso8859-9", "iso8859-15", "cp1252"):
        common = bytes(range(32, 256)).decode(page, "ignore")
        assert not set(differ) & set(common), page


def test_find_resolves_copies_and_brackets(store: MailStore) -> None:
    assert store.find("<5@x>") == store.find("5@x") == store.find(" 5@x ")
    assert store.find("nobody@x") is None


def test_a_copy_is_the_same_row_under_another_id(tmp_path: Path) -> None:
    first = mail(
        1, "Plan  for X", "Some text\nover lines", folders=("ann/sent",), duplicate_ids=("<extra@x>",)
    )
    with MailStoreWriter(tmp_path / "box.db") as writer:
        assert writer.add(first)
        late = first.date + timedelta(seconds=70) if first.date else None
        copied = mail(2, "plan for x", "Some text over lines ", date=late, mailboxes=("Bob",))
        assert not writer.add(copied)
        assert writer.add(mail(3, "plan for x", "Some other text", date=late))
        assert writer.add(mail(4, "plan for x", "Some text over lines", date=late, sender=BOB))
        later = first.date + timedelta(hours=1) if first.date else None
        assert writer.add(mail(5, "plan for x", "Some text over lines", date=later))
        assert (writer.added, writer.copies) == (4, 1)
    box = MailStore(tmp_path / "box.db")
    row = box.find("1@x")
    assert row is not None
    assert row == box.find("2@x") == box.find("<extra@x>")
    back = box.message(row)
    assert set(back.duplicate_ids) == {"extra@x", "2@x"}
    assert back.ids[0] == "1@x"
    assert back.mailboxes == ("ann", "bob")
    assert box.visible(row, "bob")


def test_one_message_id_on_two_texts_leads_to_the_first(tmp_path: Path) -> None:
    with MailStoreWriter(tmp_path / "box.db") as writer:
        writer.add(mail(1, "one", "first"))
        writer.add(mail(1, "two", "second", date=datetime(2025, 1, 1, tzinfo=UTC)))
        writer.add(mail(1, "three", "third", message_id=""))
    box = MailStore(tmp_path / "box.db")
    ids = [box.message(row).message_id for row in box.rows()]
    assert len(set(ids)) == 3
    assert all(box.find(name) == row for row, name in enumerate(ids, 1))
    row = box.find("1@x")
    assert row is not None
    assert box.header(row).subject == "one"


def test_text_that_sqlite_cannot_hold_is_cleaned(tmp_path: Path) -> None:
    odd = "a\0b \ud800 \udcff é"
    with MailStoreWriter(tmp_path / "box.db") as writer:
        writer.add(mail(1, odd, odd, sender=Address(odd, odd), folders=(odd,), message_id=odd))
    box = MailStore(tmp_path / "box.db")
    back = box.message(1)
    assert back.body == "a b \ufffd \ufffd é"
    assert box.search("é")[0].matched == 1


def _write_and_interrupt(path: Path) -> None:
    with MailStoreWriter(path) as writer:
        writer.add(mail(2, "new", "new"))
        raise KeyboardInterrupt


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "box.db"
    with MailStoreWriter(path) as writer:
        writer.add(mail(1, "old", "old"))
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _write_and_interrupt(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["box.db"]
    with MailStoreWriter(path) as writer:
        writer.add(mail(2, "new", "new"))
    assert MailStore(path).header(1).subject == "new"
    assert os.listdir(tmp_path) == ["box.db"]


def test_the_writer_says_what_is_wrong(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="does not exist"),
        MailStoreWriter(tmp_path / "no" / "box.db"),
    ):
        pass
    with pytest.raises(IsADirectoryError, match="is a folder"), MailStoreWriter(tmp_path):
        pass
    with pytest.raises(RuntimeError, match="with MailStoreWriter"):
        MailStoreWriter(tmp_path / "box.db").add(MAILS[0])


def test_opening_says_what_is_wrong(tmp_path: Path, store: MailStore) -> None:
    with pytest.raises(FileNotFoundError, match="art-gym mail import"):
        MailStore(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("hello")
    with pytest.raises(ValueError, match="not a mail store"):
        MailStore(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(ValueError, match="not a mail store"):
        MailStore(tmp_path / "other.db")
    with pytest.raises(ValueError, match="is a folder"):
        MailStore(tmp_path)
    (tmp_path / "later.db").write_bytes(store.path.read_bytes())
    with sqlite3.connect(tmp_path / "later.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ValueError, match="version 99"):
        MailStore(tmp_path / "later.db")


def test_unknown_rows_and_mailboxes_are_named(store: MailStore) -> None:
    for read in (store.message, store.header, store.message_id):
        with pytest.raises(KeyError, match="rows 1 to 6"):
            read(7)
    with pytest.raises(KeyError, match="rows 1 to 6"):
        store.snippet(0, [])
    with pytest.raises(ValueError, match="did you mean `bob`"):
        store.search("x", mailbox="bobb")


def test_mailboxes_meta_and_frequencies(store: MailStore) -> None:
    assert store.mailboxes() == [("ann", 4), ("bob", 3)]
    assert store.meta == {"source": "test"}
    assert store.document_frequency("Harbour") == 3
    assert store.document_frequency("nowhere") == 0
    assert store.document_frequency("?") == 0


def test_an_empty_store_works(tmp_path: Path) -> None:
    with MailStoreWriter(tmp_path / "box.db"):
        pass
    box = MailStore(tmp_path / "box.db")
    assert len(box) == 0
    assert box.search("x") == box.search("") == box.search("", until=datetime.now(UTC)) == []
    assert list(box.rows()) == []


def test_the_file_is_the_same_whatever_the_order_of_adding(tmp_path: Path) -> None:
    order = np.random.default_rng(3).permutation(len(MAILS))
    for name, mails in (("a", MAILS), ("b", [MAILS[i] for i in order])):
        with MailStoreWriter(tmp_path / name) as writer:
            for message in mails:
                writer.add(message)
    a, b = MailStore(tmp_path / "a"), MailStore(tmp_path / "b")
    assert [a.message(row) for row in a.rows()] == [b.message(row) for row in b.rows()]
    assert a.search("harbour bridge budget") == b.search("harbour bridge budget")


def test_copies_and_pickles_share_the_file_not_the_mail(store: MailStore) -> None:
    assert copy.deepcopy(store) is store
    data = pickle.dumps(store)
    assert len(data) < 500
    assert pickle.loads(data).search("harbour") == store.search("harbour")
    shared = open_store(store.path)
    assert open_store(store.path) is shared
    assert pickle.loads(data) is shared


def test_a_store_written_anew_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "box.db"
    with MailStoreWriter(path) as writer:
        writer.add(mail(1, "old", "old"))
    old = open_store(path)
    with MailStoreWriter(path) as writer:
        writer.add(mail(1, "new", "new words"))
    assert open_store(path) is not old
    assert open_store(path).header(1).subject == "new"
    assert old.header(1).subject == "old"


def _search(store: MailStore) -> list[Hit]:
    return store.search("harbour bridge budget")


@pytest.fixture(params=["spawn", "fork"])
def pool(request: pytest.FixtureRequest) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        yield executor


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_read_the_store(store: MailStore, pool: ProcessPoolExecutor) -> None:
    expected = _search(store)
    assert list(pool.map(_search, [store] * 4)) == [expected] * 4
    assert _search(store) == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_open_store_survives_a_fork(store: MailStore) -> None:
    expected = _search(store)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    worker = context.Process(target=lambda: results.put((_search(store), store.message(1).subject)))
    worker.start()
    worker.join(20)
    assert worker.exitcode == 0
    assert results.get() == (expected, "Undated budget")


def test_threads_read_the_store_at_once(store: MailStore) -> None:
    results: list[list[Hit]] = []
    box = MailStore(store.path)
    threads = [threading.Thread(target=lambda: results.append(_search(box))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [_search(store)] * 8


def test_snippets_show_the_best_cluster(store: MailStore) -> None:
    text = "alpha " + "filler " * 100 + "alpha and beta near gamma " + "filler " * 100 + "beta"
    line = snippet(text, ["alpha", "beta", "gamma"])
    assert "alpha and beta near gamma" in line
    assert line.startswith("…")
    assert line.endswith("…")
    assert len(line) < 90
    assert snippet("Short\n\n  text", ["x"]) == "Short text"
    assert snippet("", ["x"]) == ""
    assert "Café" in snippet("filler " * 30 + "im Café\tdort", query_words("CAFE"))
    assert snippet("cats " * 30 + "cat", ["cat"]).endswith("cat")
    row = store.find("5@x")
    assert row is not None
    assert store.snippet(row, ["harbour"]) == "the budget for the harbour bridge"


@given(text=st.text(max_size=300), words=st.lists(st.text(max_size=8), max_size=4))
@settings(max_examples=150, deadline=None)
def test_snippets_are_one_short_line(text: str, words: list[str]) -> None:
    line = snippet(text, query_words(" ".join(words)))
    assert "\n" not in line
    assert len(line) <= 60 + 2 * 12 + 2 + max((len(word) for word in words), default=0)
