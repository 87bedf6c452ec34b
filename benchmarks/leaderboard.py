"""The leaderboard: every policy of the project on the suites, as files that can be verified and a page.

    python benchmarks/leaderboard.py --train email,coding,2048 --output docs/leaderboard.md \\
        --results docs/leaderboard --check

trains `art-tiny` on mail as `make train` does, plays it before and after beside the players that use no
model, and does the same with the small models of coding and 2048; writes one result file a suite and the page
made of them: 2,000 CPU-seconds. Without `--train` only mail is trained. `--check` also plays one file again
and compares.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import harness
from leaderboard_page import leaderboard_page

from art_trainer.analysis.result_files import EvaluationRecord, read_record
from art_trainer.analysis.suites import load_suite
from art_trainer.rollout.evaluate import Evaluation, compare

BEFORE = "art-tiny"


@dataclass(frozen=True)
class Board:
    """One table."""

    suite: str
    players: tuple[str, ...]
    """Policies that use no trained weights, or those of the package."""
    trained: str = ""
    """Which of :data:`TRAININGS` plays too, if it is trained."""


_MAIL, _CODING = (BEFORE, "random", "bm25", "scripted"), ("random", "empty", "hard_coded")
_2048 = ("random", "left-down", "left-down-right-down", "greedy", "snake", "expectimax")
BOARDS = (
    Board("email-v0-test", _MAIL, "email"),
    Board("email-v0-hard-test", _MAIL, "email"),
    Board("coding-v0-expressions-test", _CODING, "coding"),
    Board("coding-v0-programs-test", _CODING),
    Board("2048-v0-test", _2048, "2048"),
)
TRAININGS = {
    "email": ["--env", "art/Email-v0", "--env-args", "difficulty=1", "--model", "art-tiny"],
    "coding": ["--env", "art/Coding-v0"],
    "2048": ["--env", "art/2048-v0"],
}


def art_trainer(words: Sequence[str], folder: Path) -> None:
    """Run a command in the folder where runs and results lie."""
    harness.art_trainer(words, folder / "log", cwd=folder)


def train(name: str, folder: Path, *, quick: bool) -> str:
    """Train one of the small models; return the policy's name on the page, which is the command."""
    words = ["train", *TRAININGS[name], "--seed", "0", "--output-dir", f"runs/{name}"]
    # The suites evaluate: what a run does by itself before and after need not be large.
    less = ["--set", "baselines=[]", "--eval-episodes", "16"]
    if quick:
        less += ["--max-steps", "2", "--groups-per-step", "4"]
        less += [] if name == "email" else ["--set", "warm_start_episodes=10"]
    art_trainer([*words, *less], folder)
    return f"after GRPO: `art-trainer {' '.join(words)}`"


def play(board: Board, policies: Sequence[str], folder: Path, *, quick: bool) -> Path:
    """Evaluate policies on a board's suite, or with ``quick`` on three of its starts; return the file."""
    suite, words = board.suite, []
    if quick:
        whole, suite = load_suite(suite), f"{suite}.yaml"
        made = f"make-suite {suite} --env {whole.env} --episodes 3 --metric {whole.metric}".split()
        made += f"--temperature {whole.temperature} --max-completion-length 16".split()
        for name, value in whole.env_args.items():
            made += ["--env-args", f"{name}={json.dumps(value)}"]
        art_trainer(made, folder)
    for policy in policies:
        words += ["--policy", policy]
    art_trainer(["eval", "--suite", suite, *words, "--json", f"results/{board.suite}.json"], folder)
    return folder / "results" / f"{board.suite}.json"


def summaries(record: EvaluationRecord) -> dict[str, Any]:
    """Each policy's figure with its interval."""
    return {policy.name: record.summary(policy) for policy in record.policies}


def check(records: dict[str, EvaluationRecord]) -> list[str]:
    """The claims that do not hold, as text."""
    failures = []

    def evaluation(suite: str, words: str) -> Evaluation | None:
        return next((p.evaluation for p in records[suite].policies if p.name == words), None)

    claims = [("email-v0-test", "runs/email", worse) for worse in (BEFORE, "bm25")]
    claims.append(("coding-v0-expressions-test", "runs/coding", "hard_coded"))
    ladder = ("expectimax", "snake", "left-down-right-down", "random")
    claims += [("2048-v0-test", *pair) for pair in (*pairwise(ladder), ("runs/2048", ladder[2]))]
    for suite, better, worse in claims:
        first, second = evaluation(suite, worse), evaluation(suite, better)
        if first is None or second is None:
            continue
        comparison = compare(first, second)
        difference = comparison.reward if suite.startswith("2048") else comparison.success
        if difference is None or difference.low <= 0:
            failures.append(f"{suite}: {better} is not surely better than {worse} ({difference})")
    return failures


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="three starts and two steps: shows that it runs")
    parser.add_argument("--train", default="email", help="what is trained, with commas: email, coding, 2048")
    parser.add_argument("--output", type=Path, help="write the page here")
    parser.add_argument("--results", type=Path, help="keep the result files here")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.train.split(",") if name]
    if not set(wanted) <= set(TRAININGS):
        parser.error(f"--train takes {', '.join(TRAININGS)}")
    records: dict[str, EvaluationRecord] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names = {f"runs/{name}": train(name, folder, quick=arguments.quick) for name in wanted}
        for board in BOARDS:
            extra = (f"runs/{board.trained}",) if board.trained in wanted else ()
            file = play(board, (*board.players, *extra), folder, quick=arguments.quick)
            records[board.suite] = read_record(file)
            print(board.suite)
            for words, told in summaries(records[board.suite]).items():
                print(f"  {words}: {told}", flush=True)
        failures = check(records) if arguments.check else []
        if arguments.check:
            art_trainer(["eval", "--verify", "results/email-v0-test.json"], folder)
            print("email-v0-test: played again, all episodes are the same")
        if arguments.output:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(leaderboard_page(list(records.values()), names), encoding="utf-8")
        if arguments.results:
            for suite, record in records.items():
                record.write(arguments.results / f"{suite}.json")
    suites = {suite: summaries(record) for suite, record in records.items()}
    seconds = harness.child_seconds()
    figures = {"suites": suites, "cpu_seconds": seconds}
    return harness.finish(arguments, figures, failures, f"CPU-seconds in all: {seconds:.0f}")


if __name__ == "__main__":
    sys.exit(main())
