import dataclasses

import pytest

from art_trainer.episode_results import EpisodeResult
from art_trainer.episodes import Ending
from art_trainer.evaluation import Evaluation
from art_trainer.suites import EvaluationRecord, PolicyRecord, Suite, leaderboard_page

MADE_WITH = {
    "python": "3.11.7",
    "system": "Linux",
    "machine": "x86_64",
    "packages": {"art-gym": "0.1.0", "numpy": "2.0"},
    "git": {"commit": "0123456789abcdef", "dirty": False},
}


def made(words, outcomes, suite, *, tokens=0, made_with=MADE_WITH, score=None, faults=0):
    """A record of one policy with these outcomes."""
    results = [
        EpisodeResult(
            f"t{k // suite.samples}",
            k // suite.samples,
            Ending.TERMINATED,
            won,
            float(won),
            {},
            {} if score is None else {"score": score + k},
            2,
            0,
            tokens,
        )
        for k, won in enumerate(outcomes)
    ]
    results += [EpisodeResult("bad", 99, Ending.ENV_ERROR, None, 0.0, {}, {}, 0, 0, 0)] * faults
    evaluation = Evaluation(words, suite.env, "test", 0, tuple(results), 1.0, samples=suite.samples)
    policy = PolicyRecord(words, f"art-trainer eval --suite {suite.name} --policy {words}", evaluation, {})
    return EvaluationRecord(suite, (policy,), made_with, 256, None)


STARTS = tuple((f"t{k}", k) for k in range(4))
MAIL = Suite(
    "art/Email-v0",
    STARTS,
    name="mail",
    about="Find mail.",
    env_args={"difficulty": 1},
    temperature=0.5,
    task_list_sha256="c0ffee" * 8,
)
GAME = Suite("art/2048-v0", STARTS, name="game", metric="score")


def rows(page, heading):
    """The cells of the table below a heading."""
    lines = page.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines if line.startswith("|")][2:]


def test_a_suite_is_a_table_with_the_best_first():
    page = leaderboard_page(
        [made("bm25", [1, 0, 0, 0], MAIL), made("runs/a", [1, 1, 1, 0], MAIL, tokens=3)], {"runs/a": "after"}
    )
    first, second = rows(page, "mail")
    assert first[0] == "after"
    assert first[1].startswith("75% (30 to 95)")
    assert first[2] == "4"
    assert first[5:] == ["temperature 0.5", "`art-trainer eval --suite mail --policy runs/a`"]
    assert second[0] == "bm25"
    assert second[5] == "–"
    assert "Find mail. `art/Email-v0` with `difficulty=1`, 4 starts, task list `c0ffeec0ffee`." in page


def test_suites_on_other_tasks_have_tables_of_their_own():
    changed = dataclasses.replace(MAIL, task_list_sha256="beef" * 16)
    page = leaderboard_page([made("a", [1] * 4, MAIL), made("b", [1] * 4, changed), made("c", [1] * 4, GAME)])
    assert page.count("\n## mail") == 2
    assert page.count("\n## game") == 1


def test_a_metric_of_the_environment_orders_the_rows():
    page = leaderboard_page([made("low", [1] * 4, GAME, score=10), made("high", [0] * 4, GAME, score=500)])
    table = rows(page, "game")
    assert [row[0] for row in table] == ["high", "low"]
    assert table[0][1].startswith("502 (")
    assert "| policy | score |" in page


def test_several_attempts_show_pass_at_k():
    suite = dataclasses.replace(MAIL, samples=2)
    ((name, success, passed, *_),) = rows(
        leaderboard_page([made("a", [1, 0, 0, 0, 1, 1, 0, 0], suite)]), "mail"
    )
    assert (name, success.split()[0], passed.split()[0]) == ("a", "38%", "50%")


def test_faults_are_told():
    assert (
        rows(leaderboard_page([made("a", [1] * 4, MAIL, faults=2)]), "mail")[0][2] == "4 (2 faults left out)"
    )


def test_a_policy_without_figures_comes_last():
    table = rows(
        leaderboard_page([made("none", [0] * 4, GAME), made("some", [0] * 4, GAME, score=1)]), "game"
    )
    assert [row[0] for row in table] == ["some", "none"]
    assert table[1][1] == "–"


def test_versions_are_told_once():
    other = {**MADE_WITH, "git": {"commit": "fedcba9876543210", "dirty": True}}
    bare = {**MADE_WITH, "git": None}
    page = leaderboard_page(
        [made("a", [1] * 4, MAIL, made_with=told) for told in (MADE_WITH, MADE_WITH, other, bare)]
    )
    lines = page.split("## Made with\n")[1].strip().splitlines()
    versions = "- Python 3.11.7 on Linux x86_64; art-gym 0.1.0, numpy 2.0"
    assert lines == [
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
