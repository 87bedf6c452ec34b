import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from art_trainer.analysis import analyze
from art_trainer.analysis.page import analysis_page
from art_trainer.cli import app
from art_trainer.run_folder import RunFolder
from tests.art_trainer.analysis.drifting_runs import Play, honest, pays_length, write_evaluation, write_run

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x1b[31m [bold]x[/bold] [/x]"


@pytest.fixture
def invoke():
    def call(*arguments):
        return CliRunner().invoke(app, ["analyze", *map(str, arguments)], env={"COLUMNS": "120"})

    return call


@pytest.fixture
def hacked(tmp_path):
    folder = write_run(tmp_path / "hacked", pays_length)
    write_evaluation(folder, "before", [True, False] * 20)
    write_evaluation(folder, "after", [False, True] * 20)
    return folder


def test_the_terminal_answers_three_questions(invoke, hacked):
    result = invoke(hacked)
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "Did it learn? Not by more than luck: held-out success went from 50% to 50%" in words
    assert "Where does it fail? 50% of the 40 evaluated attempts fail" in words
    assert "Does it cheat? Yes, by strong signs" in words
    assert "`thoroughness`" in words
    assert "Starts won 20, lost 20" in words
    assert words.index("strong") < words.index("not measured")


def test_the_numbers_and_the_page_are_written(invoke, hacked, tmp_path):
    result = invoke(hacked, "--json", tmp_path / "a.json", "--html", tmp_path / "a.html", "--price", "3")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["runs"][0]["verdict"]["cheating"] == "strong"
    assert data["runs"][0]["signs"][0]["threshold"]
    page = (tmp_path / "a.html").read_text()
    assert "Yes, by strong signs" in page
    assert "<polyline" in page


def test_runs_beside_each_other(invoke, hacked, tmp_path):
    other = write_run(tmp_path / "fair", honest, steps=8)
    write_evaluation(other, "after", [True] * 40)
    result = invoke(hacked, other, "--compare", "--html", tmp_path / "both.html")
    assert result.exit_code == 0, result.output
    assert "Starts won 20, lost 0" in result.output
    page = (tmp_path / "both.html").read_text()
    assert "hacked" in page
    assert "Starts won 20, lost 0" in page


def test_two_evaluations_by_name(invoke, hacked):
    write_evaluation(hacked, "step-10", [True] * 40)
    assert "step-10 → after" in invoke(hacked, "--between", "step-10", "after").output
    result = invoke(hacked, "--between", "step-10", "nothing")
    assert result.exit_code != 0
    assert "no evaluation 'nothing'" in str(result.exception)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        if tag not in {"meta", "rect", "line", "circle", "polyline", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_foreign_text_is_no_markup_on_the_page_nor_in_the_terminal(invoke, tmp_path):
    def script(progress, rng):
        errors = {EVIL: EVIL}
        return Play(False, [EVIL] * 2, {EVIL: float(rng.random())}, invalid=1, errors=errors)

    folder = write_run(tmp_path / "run", script, steps=8)
    RunFolder(folder).write_settings({"env": EVIL, "model": EVIL})
    page = analysis_page(analyze(folder))
    tags = Tags(page)
    assert tags.open == []
    assert not {"script", "img", "link", "iframe", "a"} & set(tags.tags)
    assert not [name for name in tags.attributes if name.startswith("on") or name in ("style", "src", "href")]
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page
    assert re.search(r"default-src 'none'; style-src 'sha256-[^']+'; base-uri 'none'", page)
    result = invoke(folder)
    assert result.exit_code == 0, result.output
    assert "\x1b[31m" not in result.output
    assert "[bold]x[/bold]" in result.output


def test_an_empty_run_gives_a_page(tmp_path):
    page = analysis_page(analyze(tmp_path))
    assert Tags(page).open == []
    assert "That cannot be told yet" in page
