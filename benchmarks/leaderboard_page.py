"""Leaderboard page in Markdown, one table a suite, made from result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art_gym.terminal import visible
from art_trainer.analysis.result_files import EvaluationRecord, PolicyRecord
from art_trainer.analysis.suites import Suite
from art_trainer.formatting import number, percent

_INTRODUCTION = (
    "Every row is a policy on a fixed list of tasks, with the 95% interval over tasks and the command that "
    "reproduces it. The result files hold every episode: `art-trainer eval --verify FILE` plays one again "
    "and compares."
)


def leaderboard_page(records: Sequence[EvaluationRecord], names: Mapping[str, str] | None = None) -> str:
    """The page, in Markdown.

    Args:
        records: Results; those of one suite on the same tasks share a table.
        names: Display names of policies.
    """
    tables: dict[tuple[str, ...], list[tuple[Suite, PolicyRecord]]] = {}
    for record in records:
        suite = record.suite
        key = (suite.name, suite.env, repr(sorted(suite.env_args.items())), suite.task_list_sha256)
        tables.setdefault(key, []).extend((suite, policy) for policy in record.policies)
    parts = ["# Leaderboard", _INTRODUCTION]
    for rows in tables.values():
        parts += _section(rows, names or {})
    versions = dict.fromkeys(_versions(record.made_with) for record in records)
    return "\n\n".join([*parts, "## Made with", "\n".join(f"- {line}" for line in versions)]) + "\n"


def _section(rows: Sequence[tuple[Suite, PolicyRecord]], names: Mapping[str, str]) -> list[str]:
    suite = rows[0][0]
    metric = suite.metric_of(policy.evaluation for _, policy in rows)
    attempts = max(played.samples for played, _ in rows)
    passed = [f"pass@{attempts}"] if attempts > 1 else []
    heads = ["policy", metric if metric != "reward" else "mean reward", *passed]
    heads += ["episodes", "turns", "invalid", "sampled at", "command"]
    cells = [_cells(played, policy, metric, attempts, names) for played, policy in _ranked(rows, metric)]
    lines = [_line(row) for row in (heads, ["---"] * len(heads), *cells)]
    about = f"{suite.about} " if suite.about else ""
    arguments = ", ".join(f"`{name}={value}`" for name, value in suite.env_args.items())
    tasks = f"{about}`{suite.env}`{f' with {arguments}' if arguments else ''}, {len(suite.starts)} starts"
    listed = f", task list `{suite.task_list_sha256[:12]}`" if suite.task_list_sha256 else ""
    return [f"## {visible(suite.name or suite.env)}", f"{tasks}{listed}.", "\n".join(lines)]


def _ranked(rows: Sequence[tuple[Suite, PolicyRecord]], metric: str) -> list[tuple[Suite, PolicyRecord]]:
    """The best first; without a figure last."""

    def rank(row: tuple[Suite, PolicyRecord]) -> tuple[bool, float]:
        measured = row[1].evaluation.measured(metric)
        return measured is None, -(measured.value if measured else 0.0)

    return sorted(rows, key=rank)


def _cells(
    suite: Suite, policy: PolicyRecord, metric: str, attempts: int, names: Mapping[str, str]
) -> list[str]:
    evaluation = policy.evaluation
    measured = evaluation.measured(metric)
    faults = f" ({evaluation.faults} faults left out)" if evaluation.faults else ""
    return [
        names.get(policy.name, policy.name),
        percent(measured) if metric == "success" else number(measured),
        *([percent(evaluation.pass_at(attempts))] if attempts > 1 else []),
        f"{len(evaluation.counted)}{faults}",
        f"{evaluation.turns:.1f}",
        f"{100 * evaluation.invalid_rate:.1f}%",
        f"temperature {suite.temperature:g}" if evaluation.tokens else "–",
        f"`{policy.command}`",
    ]


def _line(cells: Sequence[str]) -> str:
    safe = (" ".join(visible(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(safe)} |"


def _versions(made: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in made.get("packages", {}).items())
    git, commit = made.get("git"), ""
    if git:
        changed = " with uncommitted changes" if git["dirty"] else ""
        commit = f"; commit `{git['commit'][:12]}`{changed}"
    where = f"Python {made.get('python')} on {made.get('system')} {made.get('machine')}"
    return f"{where}; {packages}{commit}"
