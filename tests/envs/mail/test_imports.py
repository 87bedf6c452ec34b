import base64
import bz2
import contextlib
import gzip
import json
import lzma
import mailbox
import random
import shutil
import tarfile
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.envs.mail.importers.charsets import decode
from art_gym.envs.mail.importers.load import ImportReport, import_mail
from art_gym.envs.mail.importers.parse import (
    MAX_BODY,
    NotMailError,
    parse_addresses,
    parse_date,
    parse_json,
    parse_message,
)
from art_gym.envs.mail.importers.text import decode_header, html_to_text, transfer_decode, unbase64
from art_gym.envs.mail.message import Message
from art_gym.envs.mail.store.store import MailStore, query_words

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "email"
HEADER = b"From: Ann <ann@x.org>\nTo: bob@x.org\nSubject: Hi\nDate: Mon, 1 Jan 2024 10:00:00 +0100\n"


def data_file(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"the data file {name} is not on this machine")
    return DATA / name


def read(data: bytes) -> Message:
    return parse_message(data).message


def mail(number: int, text: str = "") -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Ann Berg <ann@x.org>"
    message["To"] = "bob@x.org, Cem <cem@x.org>"
    message["Subject"] = f"Message {number}"
    message["Date"] = f"Mon, 1 Jan 2024 {10 + number // 60}:{number % 60:02}:00 +0000"
    message["Message-ID"] = f"<{number}@x.org>"
    message.set_content(text or f"Body of number{number}\n\nFrom here on it is only text.\n")
    return message


def imported(source: Path | list[Path], out: Path, **how: str) -> tuple[ImportReport, MailStore]:
    """Import a source; every message read is imported, a copy or skipped."""
    report = import_mail(source, out, **how)
    assert report.read == report.imported + report.duplicates + report.reasons.total()
    return report, MailStore(out)


TEXTS = tomllib.loads(Path(__file__).with_name("parsing.toml").read_text("utf-8"))
SEPARATORS, SOURCES = tomllib.loads(Path(__file__).with_name("sources.toml").read_text("utf-8")).values()


@pytest.mark.parametrize(("data", "declared", "expected"), TEXTS["charsets"])
def test_charsets(data: str, declared: str, expected: str) -> None:
    assert decode(data.encode("latin-1"), declared).startswith(expected)


@pytest.mark.parametrize(("codec", "text"), TEXTS["undeclared"])
def test_charsets_that_need_no_declaration(codec: str, text: str) -> None:
    data = text.encode(codec)
    assert decode(b"Subject: x " + data + b"\nat 12:30 http://x.org", None).startswith(f"Subject: x {text}")
    # Cut in the middle of a letter, too; and the subject is in the charset of the text.
    assert decode(data[:-5], None)[:10] == text[:10]
    message = read(b"From: a@x.org\nSubject: " + data[:4] + b"\n\n" + data)
    assert (message.subject, message.body) == (data[:4].decode(codec), text)


def test_charsets_are_taken_from_html_and_from_the_header_of_the_text() -> None:
    page = '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">да'.encode("koi8-r")
    assert read(HEADER + b"Content-Type: text/html\n\n" + page).body == "да"
    declared = b"Content-Type: text/plain; charset=koi8-r\nX: y\n\ntext"
    assert read(b"Subject: " + "да".encode("koi8-r") + b"\n" + declared).subject == "да"
    assert read(b"Subject: " + "да".encode() + b"\n" + declared).subject == "да"
    assert read(b"\xef\xbb\xbfSubject: after a byte order mark\n\ntext").subject == "after a byte order mark"


READERS: dict[str, Callable[[str], Any]] = {
    "headers": decode_header,
    "html": html_to_text,
    "addresses": lambda value: [[who.name, who.email] for who in parse_addresses(value)],
    "dates": lambda value: str(parse_date(value) or "").replace(" ", "T"),
}


@pytest.mark.parametrize(
    ("kind", "value", "expected"), [(kind, *case) for kind in READERS for case in TEXTS[kind]]
)
def test_parts_of_messages(kind: str, value: str, expected: Any) -> None:
    assert READERS[kind](value) == expected


def test_base64_with_any_padding() -> None:
    for size in range(1, 12):
        data = bytes(range(65, 65 + size))
        code = base64.b64encode(data)
        assert unbase64(code) == unbase64(code.rstrip(b"=")) == unbase64(b"!" + code + b"\n*") == data
    assert unbase64(b"QUJDR") == b"ABC"
    assert transfer_decode(b"a=E9=\nb", " Quoted-Printable ") == b"a\xe9b"
    assert transfer_decode(b"abc", "no-such-thing") == b"abc"


@pytest.mark.parametrize(
    "unit", ["<", "<!--", "<script>", "<style>", "</", "&#", "<a href=", "<head>", "&amp", "<![", "<p>"]
)
def test_html_takes_linear_time(unit: str) -> None:
    html_to_text(unit * (300_000 // len(unit)))  # a second at most; in quadratic time it would be hours
    html_to_text("&#" + "9" * 5000 + ";")


def plain(message: Message) -> dict[str, Any]:
    """A message in values of JSON."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(message), default=str))
    return fields


@pytest.mark.parametrize("case", TEXTS["messages"], ids=lambda case: case["name"])
def test_messages(case: dict[str, Any]) -> None:
    found = plain((parse_json if "json" in case["name"] else parse_message)(case["raw"].encode()).message)
    assert found == found | case["is"]


def test_what_is_no_mail_says_why() -> None:
    for data, reason in ((b"", "empty"), (b" \n ", "empty"), (b"hello\n\nworld", "no mail header")):
        with pytest.raises(NotMailError, match=reason):
            parse_message(data)


def test_missing_ids_are_made_from_the_content() -> None:
    first, again, other = (read(HEADER + body) for body in (b"\na", b"\na", b"\nb"))
    assert first.message_id == again.message_id != other.message_id
    assert "no Message-ID, a digest taken instead" in parse_message(HEADER + b"\na").notes


def test_a_long_text_is_cut_and_noted() -> None:
    parsed = parse_message(HEADER + b"\n" + b"abcdefghi\n" * 200_000)
    assert len(parsed.message.body) < MAX_BODY + 60
    assert "999,999 more" not in parsed.message.body
    assert parsed.message.body.endswith("more characters left out]")
    assert any("cut" in note for note in parsed.notes)


def nested(depth: int, inner: bytes = b"deep words") -> bytes:
    line = 'Content-Type: multipart/mixed; boundary="b{0}"\n\n--b{0}\n'
    parts = [HEADER, *(line.format(level).encode() for level in range(depth))]
    return b"".join(parts) + b"\n" + inner


def test_parts_within_parts_are_read_to_a_depth() -> None:
    assert read(nested(15)).body == "deep words"
    assert "left out" in read(nested(5_000)).body
    forwarded = HEADER + b"Content-Type: message/rfc822\n\n" * 5_000 + b"\nx"
    assert "left out" in read(forwarded).body


@pytest.mark.parametrize(
    "bomb",
    [
        HEADER + b'Content-Type: multipart/mixed; boundary="b"\n\n' + b"--b\n\nx\n" * 200_000,
        HEADER + b"X: y\n" * 400_000 + b"\nbody",
        HEADER + b"To: " + b"a@b.c, " * 300_000 + b"\n\nbody",
        HEADER + b"Subject: " + b"=?utf-8?q?a?= " * 100_000 + b"\n\nbody",
        HEADER + b"Content-Type: text/plain" + b"; a" * 300_000 + b"\n\nbody",
        HEADER + b"Content-Type: text/plain; a=" + b'"\\' * 300_000 + b"\n\nbody",
        HEADER + b"From: " + b"(" * 500_000 + b"\n\nbody",
        HEADER + b" folded" * 3 + b"\n " * 500_000 + b"\n\nbody",
        b" " * 2_000_000 + HEADER,
        nested(20_000),
    ],
    ids=range(10),
)
def test_bombs_are_defused(bomb: bytes) -> None:
    try:
        message = read(bomb)
    except NotMailError:
        pass
    else:
        assert len(message.body) <= MAX_BODY + 100
        assert len(message.people) <= 2_001


SEEDS = [
    bytes(mail(1, "Grüße " * 5)),
    HEADER + b"Content-Type: text/html; charset=x-odd\nContent-Transfer-Encoding: base64\n\nPGI+eDwvYj4",
    nested(3),
    b"Subject: =?utf-8?B?w6k=?=\nFrom: a@b.c\nContent-Type: text/plain; name*0*=utf-8''%C3; name*1*=%A9\n\nx",
    HEADER + b"Content-Type: message/rfc822\n\nSubject: in\n\ntext",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        data[at:end] = draw(
            st.binary(max_size=6) | st.sampled_from([b"\n\n", b'"', b"=?", b"--b1\n", b";", b":"])
        )
    return bytes(data)


@given(mutated() | st.binary(max_size=300))
@settings(max_examples=250)
def test_no_bytes_make_the_parser_raise(data: bytes) -> None:
    try:
        message = read(data)
    except NotMailError:
        return
    assert message.message_id
    assert "\n" not in message.subject
    for text in (message.subject, message.body, message.sender.name):
        assert isinstance(text, str)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
JSON_KEYS = st.sampled_from(
    ["message_id", "date", "from", "to", "cc", "subject", "body", "folders", "dup_ids", "x_from", "x_to"]
)


@given(st.dictionaries(JSON_KEYS, JSON_VALUES))
@settings(max_examples=100)
def test_no_json_makes_the_reader_raise(record: dict[str, object]) -> None:
    try:
        message = parse_json(json.dumps(record).encode(), "box").message
    except NotMailError:
        return
    assert message.mailboxes


def test_lines_that_are_no_json_of_a_mail_say_why() -> None:
    for bad, reason in (
        (b"{", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"{}", "without message_id"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"body": ' + b"9" * 5_000 + b"}", "no JSON"),
    ):
        with pytest.raises(NotMailError, match=reason):
            parse_json(bad)


def write_mbox(path: Path, count: int) -> None:
    box = mailbox.mbox(str(path))
    for number in range(count):
        box.add(mailbox.mboxMessage(mail(number)))
    box.close()


def everything(store: MailStore) -> list[Message]:
    return [store.message(row) for row in store.rows()]


def test_mbox_and_its_progress(tmp_path: Path) -> None:
    source = tmp_path / "Archive.2024.mbox"
    write_mbox(source, 120)
    calls: list[tuple[int, int | None]] = []
    report = import_mail(source, tmp_path / "box.db", on_progress=lambda *call: calls.append(call))
    assert (report.sources, report.read, report.imported, report.reasons) == (
        {str(source): 120},
        120,
        120,
        {},
    )
    messages = everything(MailStore(tmp_path / "box.db"))
    assert (messages[3].message_id, messages[3].mailboxes) == ("3@x.org", ("archive",))
    assert messages[3].body == "Body of number3\n\nFrom here on it is only text."
    size = source.stat().st_size
    assert len(calls) == 2
    assert calls == sorted(calls)
    assert calls[-1] == (size, size)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("between", ["", "\n"], ids=["no blank line", "a blank line"])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_every_separator_of_an_mbox_is_found(
    separator: str, between: str, end: bytes, tmp_path: Path
) -> None:
    text = (
        "Hi\n\nFrom here on\nnote: it is text.\n\nFrom \nRussia\n\nFrom Wikipedia\nhttps://x.org\n\nBye {}\n"
    )
    blocks = [f"{separator}\n{mail(n, text.format(n))}{between}".encode() for n in range(9)]
    source = tmp_path / "Inbox"
    source.write_bytes(b"".join(blocks).replace(b"\n", end))
    report, store = imported(source, tmp_path / "box.db")
    # The standard library's reader splits at each line of text that begins with "From ", too.
    with contextlib.closing(mailbox.mbox(source, create=False)) as box:
        found = [message for message in box if message["Subject"]]
    assert report.read == report.imported == len(found) == 9
    assert all(message.body.endswith(f"Bye {number}") for number, message in enumerate(everything(store)))


@pytest.mark.parametrize("packed", ["", "zip", "gztar", "bztar"])
@pytest.mark.parametrize("case", SOURCES, ids=lambda case: case["name"])
def test_sources(case: dict[str, Any], packed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all").mkdir()
    monkeypatch.chdir(tmp_path / "all")
    for name, text in case["files"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text.encode("latin-1"))
    for name, target in case.get("links", {}).items():
        Path(name).symlink_to(target)
    if packed:
        report, store = imported(Path(shutil.make_archive("../all", packed)), tmp_path / "box.db")
        assert {message.subject for message in everything(store)} == {m["subject"] for m in case["messages"]}
        return
    report, store = imported([Path(path) for path in case["paths"]], tmp_path / "box.db")
    assert (report.sources, report.reasons) == (case["sources"], case.get("reasons", {}))
    assert (report.read, report.duplicates) == (sum(case["sources"].values()), case.get("duplicates", 0))
    assert all(line in report.summary() for line in case.get("summary", []))
    messages = sorted(map(plain, everything(store)), key=lambda message: message["subject"])
    for message, expected in zip(messages, case["messages"], strict=True):
        assert message == message | expected


@pytest.mark.parametrize(("ending", "opener"), [(".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)])
def test_compressed_files_and_damage_in_them(tmp_path: Path, ending: str, opener: type) -> None:
    lines = [
        json.dumps({"message_id": str(i), "subject": f"s{i}", "body": random.Random(i).randbytes(900).hex()})
        for i in range(600)
    ]
    source = tmp_path / f"mail.jsonl{ending}"
    with opener(source, "wt") as file:
        file.write("\n".join(lines))
    assert imported(source, tmp_path / "whole.db")[0].imported == 600
    data = source.read_bytes()
    source.write_bytes(data[: len(data) * 7 // 8])
    report, _ = imported(source, tmp_path / "half.db")
    assert report.imported > 300
    assert any("damaged" in reason for reason in report.reasons)
    if ending == ".gz":
        source.write_bytes(data[:20_000])
        assert imported(source, tmp_path / "start.db")[0].imported > 10


WRONG = {"photo.jpg": "no mail that is known", "bad.gz": "damaged", "empty": "no mail", ".": "lie inside it"}


@pytest.mark.parametrize("path", WRONG)
def test_wrong_input_is_explained(tmp_path: Path, path: str) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8bno gzip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=WRONG[path]):
        import_mail(tmp_path / path, tmp_path / "box.db")
    assert not (tmp_path / "box.db").exists()


def test_an_interrupted_import_leaves_nothing(tmp_path: Path) -> None:
    write_mbox(tmp_path / "a.mbox", 100)

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_mail(tmp_path / "a.mbox", tmp_path / "box.db", on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mbox"]


def test_every_nasty_message_is_imported_or_listed(tmp_path: Path) -> None:
    with tarfile.open(data_file("nasty.tar.xz")) as archive:
        archive.extractall(tmp_path / "nasty", filter="data")
    files = [path for path in (tmp_path / "nasty").rglob("*") if path.is_file()]
    report, store = imported(tmp_path / "nasty", tmp_path / "box.db")
    assert report.read == len(files) >= 120
    assert report.imported + report.duplicates == sum(path.suffix == ".eml" for path in files)
    assert len(store) == report.imported


@pytest.mark.e2e
def test_real_mail_is_imported_whole_and_found_again(tmp_path: Path) -> None:
    source = tmp_path / "part.jsonl"
    with lzma.open(data_file("enron-subset.jsonl.xz"), "rt") as file:
        lines = [line for number, line in enumerate(file) if number % 20 == 0]
    source.write_text("".join(lines))
    report, store = imported(source, tmp_path / "box.db")
    assert report.imported + report.duplicates == len(lines)
    found = tried = 0
    for line in random.Random(5).sample(lines, 120):
        record = json.loads(line)
        row = store.find(record["message_id"])
        assert row is not None
        assert all(store.find(other) == row for other in record["dup_ids"])
        assert store.message(row).body.split() == record["body"].split()
        words = [word for word in query_words(record["body"]) if len(word) > 3 and word.isalpha()]
        words.sort(key=lambda word: (store.document_frequency(word), word))
        if len(words) >= 3:
            tried += 1
            found += row in [hit.row for hit in store.search(" ".join(words[:3]))]
    assert tried > 80
    assert found / tried > 0.9
