import json

import pytest

from art_trainer.analysis.report import write_report
from tests.art_trainer.analysis.drifting_runs import Play, honest, pays_length, write_evaluation, write_run

EVIL = "\x1b[31m [bold]x[/bold] [/x]"


@pytest.fixture
def analyze(invoke):
    """Run ``art-trainer analyze``; returns the output, with single spaces."""
    return lambda *arguments: " ".join(invoke("analyze", *arguments).output.split())


@pytest.fixture
def hacked(tmp_path):
    folder = write_run(tmp_path / "hacked", pays_length)
    write_evaluation(folder, "before", [True, False] * 20)
    write_evaluation(folder, "after", [False, True] * 20)
    return folder


def test_the_terminal_answers_three_questions_and_numbers_are_written(analyze, hacked, tmp_path):
    words = analyze(hacked, "--json", tmp_path / "a.json")
    assert "Did it learn? Not by more than chance: held-out success went from 50% to 50%" in words
    assert "Where does it fail? 50% of the 40 evaluated attempts fail" in words
    assert "Is the reward hacked? Yes" in words
    assert "`thoroughness`" in words
    assert "Episodes won 20, lost 20" in words
    assert words.index("strong") < words.index("not measured")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["runs"][0]["verdict"]["confidence"] == "strong"


def test_damaged_records_are_named_first_and_are_a_failure(invoke, hacked):
    with (hacked / "metrics.jsonl").open("a") as stream:
        stream.write("garbage\n")
    result = invoke("analyze", hacked)
    assert result.exit_code == 1
    for text in (result.output, write_report(hacked).read_text()):
        words = " ".join(text.split())
        assert words.index("Warning: the records are damaged") < words.index("Did it learn?")
        assert "metrics.jsonl has 1 lines that cannot be read" in words


def test_runs_and_evaluations_are_compared(analyze, hacked, tmp_path):
    other = write_run(tmp_path / "fair", honest, steps=8)
    write_evaluation(other, "after", [True] * 40)
    assert "Episodes won 20, lost 0" in analyze(hacked, other, "--compare")
    write_evaluation(hacked, "step-10", [True] * 40)
    named = analyze(hacked, "--between", "step-10", "after")
    assert "step-10 → after" in named
    assert "Episodes won 0, lost 20" in named


def test_foreign_text_is_no_markup_in_the_terminal(analyze, tmp_path):
    def script(progress, rng):
        return Play(False, [EVIL] * 2, {EVIL: float(rng.random())}, invalid=1, error=(EVIL, EVIL))

    output = analyze(write_run(tmp_path, script, steps=8))
    assert "\x1b[31m" not in output
    assert "[bold]x[/bold]" in output
