"""The page that shows who is how good: a table an environment, made from result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art_trainer.display import number, percent, visible
from art_trainer.statistics import Interval
from art_trainer.suites.record import EvaluationRecord, PolicyRecord, metric_of
from art_trainer.suites.suite import Suite

_INTRODUCTION = (
    "Every row is a policy on a fixed list of tasks, with the 95% interval over tasks and the command that "
    "makes it again. The files it was made from hold every episode: `art-trainer eval --verify FILE` repeats "
    "one and compares."
)


def leaderboard_page(records: Sequence[EvaluationRecord], names: Mapping[str, str] | None = None) -> str:
    """The page, in Markdown.

    Args:
        records: What was evaluated. Those of one suite, on the same tasks, share a table.
        names: What to call a policy instead of the words it was given by.
    """
    tables: dict[tuple[str, ...], list[tuple[EvaluationRecord, PolicyRecord]]] = {}
    for record in records:
        for policy in record.policies:
            tables.setdefault(_table_key(record.suite), []).append((record, policy))
    parts = ["# Leaderboard", _INTRODUCTION]
    for rows in tables.values():
        parts += _section(rows, names or {})
    parts += ["## Made with", _made_with(records)]
    return "\n\n".join(parts) + "\n"


def _table_key(suite: Suite) -> tuple[str, ...]:
    """Rows of equal keys played the same tasks and can be compared."""
    return (suite.name, suite.env, repr(sorted(suite.env_args.items())), suite.task_list_sha256)


def _section(rows: Sequence[tuple[EvaluationRecord, PolicyRecord]], names: Mapping[str, str]) -> list[str]:
    suite = rows[0][0].suite
    metric = metric_of(suite, [policy.evaluation for _, policy in rows])
    shown = [_Row(record.suite, policy, policy.evaluation.measured(metric)) for record, policy in rows]
    shown.sort(key=lambda row: (row.measured is None, -(row.measured.value if row.measured else 0.0)))
    attempts = max(row.suite.samples for row in shown)
    heads = ["policy", metric if metric != "reward" else "mean reward"]
    heads += [f"pass@{attempts}"] if attempts > 1 else []
    heads += ["episodes", "turns", "invalid", "sampled at", "command"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    lines += [_line(row.cells(metric, attempts, names)) for row in shown]
    title = f"## {visible(suite.name or suite.env)}"
    about = f"{suite.about} " if suite.about else ""
    tasks = f"{about}`{suite.env}`{_arguments(suite)}, {len(suite.starts)} starts"
    listed = f", task list `{suite.task_list_sha256[:12]}`" if suite.task_list_sha256 else ""
    return [title, f"{tasks}{listed}.", "\n".join(lines)]


class _Row:
    """One policy of a table."""

    def __init__(self, suite: Suite, policy: PolicyRecord, measured: Interval | None) -> None:
        self.suite = suite
        self.measured = measured
        self._policy = policy

    def cells(self, metric: str, attempts: int, names: Mapping[str, str]) -> list[str]:
        """What the table shows."""
        evaluation = self._policy.evaluation
        name = names.get(self._policy.words, self._policy.words)
        faults = f" ({evaluation.faults} faults left out)" if evaluation.faults else ""
        passed = [percent(evaluation.pass_at(attempts))] if attempts > 1 else []
        return [
            name,
            percent(self.measured) if metric == "success" else number(self.measured),
            *passed,
            f"{len(evaluation.counted)}{faults}",
            f"{evaluation.turns:.1f}",
            f"{100 * evaluation.invalid_rate:.1f}%",
            f"temperature {self.suite.temperature:g}" if evaluation.tokens else "–",
            f"`{self._policy.command}`",
        ]


def _arguments(suite: Suite) -> str:
    told = ", ".join(f"`{name}={value}`" for name, value in suite.env_args.items())
    return f" with {told}" if told else ""


def _line(cells: Sequence[str]) -> str:
    safe = (" ".join(visible(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(safe)} |"


def _made_with(records: Sequence[EvaluationRecord]) -> str:
    """One line for each set of versions; usually one."""
    lines = list(dict.fromkeys(_versions(record.made_with) for record in records))
    return "\n".join(f"- {line}" for line in lines)


def _versions(told: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in told.get("packages", {}).items())
    git = told.get("git")
    commit = ""
    if git:
        changed = " with uncommitted changes" if git["dirty"] else ""
        commit = f"; commit `{git['commit'][:12]}`{changed}"
    where = f"Python {told.get('python')} on {told.get('system')} {told.get('machine')}"
    return f"{where}; {packages}{commit}"
