"""``art-gym mail``, and what is the same for all commands."""

import json
import sys
from pathlib import Path

import pytest

from art_gym.envs.mail.store.store import MailStore


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "mail.jsonl"
    ann = {"message_id": "1", "date": "2024-01-05", "from": "Ann <ann@x.org>", "subject": "Budget"}
    bob = {"message_id": "2", "date": "2024-02-05", "from": "Bob\x1b[2J <bob@x.org>", "subject": "[/b] x"}
    lines = [ann | {"body": "bridge"}, bob | {"body": "budget \x1b]52;c;b3duZWQ=\x07"}]
    path.write_text("\n".join([*map(json.dumps, lines), "{"]))
    return path


@pytest.fixture
def box(jsonl: Path, command) -> Path:
    path = jsonl.with_name("box.db")
    command("mail", "import", jsonl, "--out", path)
    return path


def test_import_writes_a_store_and_reports(jsonl, command, rejected):
    out = jsonl.with_name("my box.db")
    result = command("mail", "import", jsonl, "--out", out)
    assert result.code == 0
    assert f"art-gym mail search '{out}' WORDS" in result.out
    assert len(MailStore(out)) == 2
    assert "2 imported" in result.out
    assert "skipped 1: no JSON" in result.out
    assert "--force" in rejected("mail", "import", jsonl, "--out", out)
    again = command("mail", "import", jsonl, jsonl, "--out", out, "--force", "--format", "jsonl")
    assert "2 imported, 2 copies of these" in again.out
    assert f"6 in {jsonl}" in again.out
    assert "would replace" in rejected("mail", "import", jsonl, "--out", jsonl, "--force")


def test_search_shows_hits(box, command, rejected):
    lines = command("mail", "search", box, "budget", "bridge").out.splitlines()
    assert lines[:3] == ["2024-01-05 | Ann | Budget | 2/2", "    bridge", "    Message-ID: 1"]
    assert lines[3] == "2024-02-05 | Bob␛[2J | [/b] x | 1/2"
    assert lines[4] == "    budget ␛]52;c;b3duZWQ=␇"
    narrowed = command("mail", "search", box, "budget", "--after", "2024-02-01", "--sender", "bob")
    assert "Ann" not in narrowed.out
    assert "no mail found among 2" in command("mail", "search", box, "zebra").out
    assert "write it as 2024-01-31" in rejected("mail", "search", box, "x", "--after", "May")
    questions = box.with_name("questions.jsonl")
    assert "about the 2 mails of" in rejected("mail", "questions", box, "--out", questions)
    assert not questions.exists()
    assert "would replace the mailbox" in rejected("mail", "questions", box, "--out", box)
    assert box.stat().st_mode & 0o777 == 0o600
    assert "Example: art-gym mail import" in command("mail", "import", "--help").out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("import", "no-such-file", "--out", "box.db"), "nothing to import at no-such-file"),
        (("import", "mail.jsonl", "--out", "no/such/box.db"), "does not exist"),
        (("import", "mail.jsonl", "--out", "box.db", "--format", "pst"), "format `pst`; known: `mbox`"),
        (("search", "mail.jsonl", "x"), "not a mail store"),
        (("search", "no-such-box.db", "x"), "no mail store"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(jsonl, monkeypatch, rejected, arguments, reason):
    monkeypatch.chdir(jsonl.parent)
    assert reason in rejected("mail", *arguments)
    assert not Path("box.db").exists()


def test_an_interrupt_leaves_nothing(jsonl, monkeypatch, command):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("art_gym.envs.mail.importers.load._import_one", interrupted)
    result = command("mail", "import", jsonl, "--out", jsonl.with_name("box.db"))
    assert result.code == 130
    assert "interrupted: nothing was written" in result.err
    assert [path.name for path in jsonl.parent.iterdir()] == ["mail.jsonl"]


def test_a_missing_extra_is_named(monkeypatch, command):
    monkeypatch.delitem(sys.modules, "art_gym.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert 'pip install "art-gym[cli]"' in command("--help").code
