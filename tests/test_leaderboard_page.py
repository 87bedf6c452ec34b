import dataclasses
from pathlib import Path

import pytest

from art_trainer.analysis.result_files import EvaluationRecord, PolicyRecord
from art_trainer.analysis.suites import Suite
from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.types import Ending
from benchmarks.leaderboard_page import leaderboard_page

MADE_WITH = {
    "python": "3.11.7", "system": "Linux", "machine": "x86_64",
    "packages": {"art-gym": "0.1.0", "numpy": "2.0"}, "git": {"commit": "0123456789abcdef", "dirty": False},
}  # fmt: skip
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
        played = Ending.TERMINATED, won, float(won), {}, metrics, 2, 0, tokens
        results.append(EpisodeResult(f"t{start}", start, *played))
    results += [EpisodeResult("bad", 99, Ending.ENV_ERROR, None, 0.0, {}, {}, 0, 0, 0)] * faults
    evaluation = Evaluation(words, suite.env, "test", 0, tuple(results), 1.0, samples=suite.samples)
    policy = PolicyRecord(words, f"art-trainer eval --suite {suite.name} --policy {words}", evaluation, {})
    return EvaluationRecord(suite, (policy,), made_with, 256, None)


def test_the_page():
    """Suites on other tasks apart, the best first, a policy without the metric last, each version once."""
    other = {**MADE_WITH, "git": {"commit": "fedcba9876543210", "dirty": True}}
    records = [
        made("bm25", [1, 0, 0, 0], MAIL, faults=2),
        made("runs/a", [1, 1, 1, 0], MAIL, tokens=3, made_with=other),
        made("b", [1] * 4, dataclasses.replace(MAIL, task_list_sha256="beef" * 16)),
        made("none", [1] * 4, GAME, made_with={**MADE_WITH, "git": None}),
        made("low", [1] * 4, GAME, score=10),
        made("high", [0] * 4, GAME, score=500),
        made("several", [1, 0, 0, 0, 1, 1, 0, 0], dataclasses.replace(MAIL, name="twice", samples=2)),
    ]
    page = leaderboard_page(records, {"runs/a": "after"})
    assert page == Path(__file__).with_name("leaderboard_page.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["a|b", "a\nb", "a\x1b[31mb"])
def test_a_name_cannot_break_the_table(name):
    page = leaderboard_page([made("x", [1] * 4, MAIL)], {"x": name})
    (line,) = [line for line in page.splitlines() if line.startswith("| a")]
    assert line.replace("\\|", "").count("|") == 8
    assert "\x1b" not in page
