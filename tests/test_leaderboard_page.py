import dataclasses

import pytest

from art_trainer.analysis.result_files import EvaluationRecord, PolicyRecord
from art_trainer.analysis.suites import Suite
from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.types import Ending
from benchmarks.leaderboard_page import leaderboard_page

MADE_WITH = {
    "python": "3.11.7",
    "system": "Linux",
    "machine": "x86_64",
    "packages": {"art-gym": "0.1.0", "numpy": "2.0"},
    "git": {"commit": "0123456789abcdef", "dirty": False},
}
STARTS = tuple((f"t{k}", k) for k in range(4))
MAIL = Suite(
    "art/Email-v0", STARTS, name="mail", about="Find mail.", env_args={"difficulty": 1}, temperature=0.5,
    task_list_sha256="c0ffee" * 8,
)  # fmt: skip
GAME = Suite("art/2048-v0", STARTS, name="game", metric="score")


def made(words, outcomes, suite, *, tokens=0, made_with=MADE_WITH, score=None, faults=0):
    """A record of one policy with these outcomes."""
    results = []
    for k, won in enumerate(outcomes):
        start = k // suite.samples
        metrics = {} if score is None else {"score": score + k}
        results.append(
            EpisodeResult(f"t{start}", start, Ending.TERMINATED, won, float(won), {}, metrics, 2, 0, tokens)
        )
    results += [EpisodeResult("bad", 99, Ending.ENV_ERROR, None, 0.0, {}, {}, 0, 0, 0)] * faults
    evaluation = Evaluation(words, suite.env, "test", 0, tuple(results), 1.0, samples=suite.samples)
    policy = PolicyRecord(words, f"art-trainer eval --suite {suite.name} --policy {words}", evaluation, {})
    return EvaluationRecord(suite, (policy,), made_with, 256, None)


def rows(page, heading):
    """The cells of the table below a heading."""
    lines = page.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines if line.startswith("|")][2:]


def test_a_suite_is_a_table_with_the_best_first():
    page = leaderboard_page(
        [made("bm25", [1, 0, 0, 0], MAIL, faults=2), made("runs/a", [1, 1, 1, 0], MAIL, tokens=3)],
        {"runs/a": "after"},
    )
    first, second = rows(page, "mail")
    assert first[0] == "after"
    assert first[1].startswith("75% (30 to 95)")
    assert first[5:] == ["temperature 0.5", "`art-trainer eval --suite mail --policy runs/a`"]
    assert (second[0], second[2], second[5]) == ("bm25", "4 (2 faults left out)", "–")
    assert "Find mail. `art/Email-v0` with `difficulty=1`, 4 starts, task list `c0ffeec0ffee`." in page


def test_suites_on_other_tasks_have_tables_of_their_own():
    changed = dataclasses.replace(MAIL, task_list_sha256="beef" * 16)
    page = leaderboard_page([made("a", [1] * 4, MAIL), made("b", [1] * 4, changed), made("c", [1] * 4, GAME)])
    assert page.count("\n## mail") == 2
    assert page.count("\n## game") == 1


def test_a_metric_of_the_environment_orders_the_rows_and_who_lacks_it_is_last():
    records = [
        made("none", [1] * 4, GAME),
        made("low", [1] * 4, GAME, score=10),
        made("high", [0] * 4, GAME, score=500),
    ]
    page = leaderboard_page(records)
    table = rows(page, "game")
    assert [row[0] for row in table] == ["high", "low", "none"]
    assert table[0][1].startswith("502 (")
    assert table[2][1] == "–"
    assert "| policy | score |" in page


def test_several_attempts_show_pass_at_k():
    suite = dataclasses.replace(MAIL, samples=2)
    page = leaderboard_page([made("a", [1, 0, 0, 0, 1, 1, 0, 0], suite)])
    ((name, success, passed, *_),) = rows(page, "mail")
    assert (name, success.split()[0], passed.split()[0]) == ("a", "38%", "50%")


def test_each_set_of_versions_is_shown_once():
    other = {**MADE_WITH, "git": {"commit": "fedcba9876543210", "dirty": True}}
    bare = {**MADE_WITH, "git": None}
    page = leaderboard_page(
        [made("a", [1] * 4, MAIL, made_with=told) for told in (MADE_WITH, MADE_WITH, other, bare)]
    )
    versions = "- Python 3.11.7 on Linux x86_64; art-gym 0.1.0, numpy 2.0"
    assert page.split("## Made with\n")[1].strip().splitlines() == [
        f"{versions}; commit `0123456789ab`",
        f"{versions}; commit `fedcba987654` with uncommitted changes",
        versions,
    ]


@pytest.mark.parametrize("name", ["a|b", "a\nb", "a\x1b[31mb"])
def test_a_name_cannot_break_the_table(name):
    page = leaderboard_page([made("x", [1] * 4, MAIL)], {"x": name})
    (line,) = [line for line in page.splitlines() if line.startswith("| a")]
    assert line.replace("\\|", "").count("|") == 8
    assert "\x1b" not in page
