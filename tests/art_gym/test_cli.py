import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from art_gym import cli
from art_gym.envs.mail.store import MailStore


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "mail.jsonl"
    lines = [
        {
            "message_id": "1",
            "date": "2024-01-05",
            "from": "Ann <ann@x.org>",
            "subject": "Budget",
            "body": "bridge",
        },
        {
            "message_id": "2",
            "date": "2024-02-05",
            "from": "Bob <bob@x.org>",
            "subject": "[/b] x",
            "body": "budget",
        },
    ]
    path.write_text("\n".join([*map(json.dumps, lines), "{"]))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["art-gym", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_import_writes_a_store_and_gives_the_account(
    jsonl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = jsonl.with_name("box.db")
    assert run(monkeypatch, "mail", "import", jsonl, "--out", out) == 0
    assert len(MailStore(out)) == 2
    shown = capsys.readouterr().out
    assert "2 imported" in shown
    assert "skipped 1: no JSON" in shown
    assert run(monkeypatch, "mail", "import", jsonl, "--out", out) == 2
    assert "--force" in capsys.readouterr().err
    assert run(monkeypatch, "mail", "import", jsonl, "--out", out, "--force", "--format", "jsonl") == 0


def test_search_shows_hits(
    jsonl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = jsonl.with_name("box.db")
    run(monkeypatch, "mail", "import", jsonl, "--out", out)
    capsys.readouterr()
    assert run(monkeypatch, "mail", "search", out, "budget", "bridge") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["2024-01-05", "Ann", "Budget", "bridge", "2/2"]
    assert "[/b] x" in lines[2]
    assert run(monkeypatch, "mail", "search", out, "budget", "--after", "2024-02-01", "--sender", "bob") == 0
    assert "Ann" not in capsys.readouterr().out
    assert run(monkeypatch, "mail", "search", out, "zebra") == 0
    assert "no mail found among 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mail", "import", "no-such-file", "--out", "box.db"), "nothing to import at no-such-file"),
        (("mail", "import", "{jsonl}", "--out", "no/such/box.db"), "does not exist"),
        (("mail", "import", "{jsonl}", "--out", "box.db", "--format", "pst"), "known: mbox"),
        (("mail", "search", "{jsonl}", "x"), "not a mail store"),
        (("mail", "search", "no-such-box.db", "x"), "no mail store"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    jsonl: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(jsonl.parent)
    assert run(monkeypatch, *(argument.format(jsonl=jsonl) for argument in arguments)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("art-gym: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert not Path("box.db").exists()


def test_a_wrong_date_says_how_to_write_one(
    jsonl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = jsonl.with_name("box.db")
    run(monkeypatch, "mail", "import", jsonl, "--out", out)
    assert run(monkeypatch, "mail", "search", out, "x", "--after", "May") == 2
    assert "write it as 2024-01-31" in capsys.readouterr().err


def test_an_interrupt_leaves_nothing_and_says_so(
    jsonl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("art_gym.envs.mail.imports._import_one", interrupted)
    assert run(monkeypatch, "mail", "import", jsonl, "--out", jsonl.with_name("box.db")) == 130
    assert "interrupted: nothing was written" in capsys.readouterr().err
    assert [path.name for path in jsonl.parent.iterdir()] == ["mail.jsonl"]


def test_help_teaches_with_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "mail", "import", "--help") == 0
    assert "Example: art-gym mail import" in capsys.readouterr().out


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_rich(name: str, *rest: Any, **options: Any) -> Any:
        if name == "rich":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    code = run(monkeypatch, "--help")
    assert isinstance(code, str)
    assert 'pip install "art-gym[cli]"' in code


def test_questions_are_made_and_converted(
    jsonl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    box, out = jsonl.with_name("box.db"), jsonl.with_name("questions.jsonl")
    run(monkeypatch, "mail", "import", jsonl, "--out", box)
    source = jsonl.with_name("art-e.jsonl")
    item = {"question": "What is the budget for?", "answer": "a bridge", "message_ids": ["<1>"]}
    source.write_text(json.dumps(item) + "\n" + json.dumps(item | {"answer": None}))
    assert run(monkeypatch, "mail", "questions", box, "--out", out, "--source", source) == 0
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["gold_ids"] == ["1"]
    shown = capsys.readouterr().out
    assert "1 of 2 questions kept" in shown
    assert "no answer given" in shown
    assert (
        run(monkeypatch, "mail", "questions", box, "--out", out, "--source", source, "--format", "arte") == 2
    )
    assert "did you mean `art-e`" in capsys.readouterr().err
