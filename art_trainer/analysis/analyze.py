"""Analyzes runs: whether they learned, where they fail, and whether the reward is hacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from art_gym.errors import did_you_mean
from art_trainer.analysis.detectors import Evidence, Finding, Verdict, detect, verdict_of
from art_trainer.analysis.error_patterns import ErrorPattern
from art_trainer.analysis.evaluation_change import EvaluationChange, change_between
from art_trainer.analysis.run_records import LATER_TURNS, Curve, RunRecords, Sums, read_run
from art_trainer.analysis.task_rates import TaskCollector, TaskRates
from art_trainer.analysis.trends import TermGain, term_gains
from art_trainer.errors import ConfigError
from art_trainer.formatting import finite
from art_trainer.rollout.evaluate import Evaluation
from art_trainer.rollout.statistics import clustered_rate_interval
from art_trainer.tracking.run_dir import AFTER, BASELINE, BEFORE, RunFolder
from art_trainer.types import Interval

_WINDOWS = 8
_PATTERNS = 12


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Averages over a range of steps, by name (:func:`~art_trainer.analysis.run_records.measures`)."""

    first_step: int
    last_step: int
    episodes: int
    success: Interval | None
    means: Mapping[str, float]

    @property
    def steps(self) -> str:
        """The range as text: ``5–6``, or ``9``."""
        return "–".join(str(step) for step in dict.fromkeys((self.first_step, self.last_step)))


@dataclass(frozen=True, slots=True)
class ToolShare:
    """How often a tool was called in a turn.

    Attributes:
        turn: The turn, from 1; with ``later`` this turn and all after it.
        later: Whether later turns are included.
        tool: The tool's name, ``(invalid)`` for a reply without a valid call.
        count: Number of calls.
        share: Share of the turn's replies.
        early: The share in the first third of training.
        late: The share in the last third.
    """

    turn: int
    later: bool
    tool: str
    count: int
    share: float
    early: float
    late: float


@dataclass(frozen=True, slots=True)
class RunAnalysis:
    """Analysis of one run.

    Attributes:
        path: The run's folder.
        env: The environment's id.
        model: The model's name.
        steps: The last step that was logged or recorded.
        episodes: Recorded training episodes without a fault; ``faults`` counts the others.
        recorded_share: Share of the training episodes that are recorded; ``None`` if unknown.
        broken_lines: Unreadable lines of the metrics.
        damage: Faults of the records; nothing after them was read.
        success: Success rate over all recorded training episodes.
        windows: The training in a few ranges of steps.
        curves: Every quantity over the steps.
        gains: Change of the reward and of each term, largest gain first.
        tools: Actions by turn.
        errors: Error patterns, most frequent first; ``error_share`` is the share of invalid replies.
        endings: Share of the recorded episodes by how they ended.
        tasks: Success rates by task, of the last evaluation and of training.
        change: Difference between two evaluations.
        usage: Tokens ``sampled`` in training, ``read`` (prompts and observations, each once), sampled
            ``per_episode`` and ``evaluated`` (sampled in evaluations); what the run took,
            :meth:`.RunFolder.cost`. What is not known is missing.
        findings: Results of all detectors, most certain first.
        verdict: Three sentences.
    """

    path: str
    env: str
    model: str
    steps: int
    episodes: int
    faults: int
    recorded_share: float | None
    broken_lines: int
    damage: tuple[str, ...]
    success: Interval | None
    windows: tuple[WindowStats, ...]
    curves: tuple[Curve, ...]
    gains: tuple[TermGain, ...]
    tools: tuple[ToolShare, ...]
    errors: tuple[ErrorPattern, ...]
    error_share: float
    endings: Mapping[str, float]
    tasks: tuple[TaskRates, ...]
    change: EvaluationChange | None
    usage: Mapping[str, float]
    findings: tuple[Finding, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Analysis:
    """Analysis of one or more runs.

    Attributes:
        runs: One analysis a run, in the given order.
        comparisons: The last evaluation of each later run against that of the first.
    """

    runs: tuple[RunAnalysis, ...]
    comparisons: tuple[EvaluationChange, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy; a number that is not finite becomes ``None``."""
        copied: dict[str, Any] = finite(dataclasses.asdict(self))
        return copied


def analyze(
    runs: Path | str | Sequence[Path | str],
    *,
    compare: bool = False,
    between: tuple[str, str] | None = None,
) -> Analysis:
    """Analyze runs: whether they learned, where they fail, and whether the reward is hacked.

    Args:
        runs: A run's folder, or several.
        compare: Also compare the last evaluation of each later run with that of the first.
        between: Names of two evaluations of each run (``evaluations/NAME.json``) to compare; by default
            those before and after training.

    Raises:
        FileNotFoundError: If a folder does not exist.
        ConfigError: If a folder holds no run, or a run lacks an evaluation that is named or needed.
        ValueError: If a file is malformed.
    """
    folders = [RunFolder(Path(run)) for run in ([runs] if isinstance(runs, Path | str) else runs)]
    if not folders:
        raise ConfigError("an analysis needs at least one run's folder")
    for folder in folders:
        if not folder.path.is_dir():
            raise FileNotFoundError(f"no run folder at {folder.path}")
        _require_run(folder)
    found = tuple(_analyze_run(folder, between) for folder in folders)
    return Analysis(found, _comparisons(folders) if compare else ())


def _require_run(folder: RunFolder) -> None:
    if not folder.holds_run:
        runs = [str(path) for path in sorted(folder.path.iterdir()) if RunFolder(path).holds_run]
        hint = (
            f"name one of those in it, as in {runs[0]}" if runs else "it has no run.yaml and no metrics.jsonl"
        )
        raise ConfigError(f"{folder.path} holds no run: {hint}")


def _analyze_run(folder: RunFolder, between: tuple[str, str] | None) -> RunAnalysis:
    records, settings = read_run(folder.path), folder.settings()
    first, last = _evaluations(folder, between)
    change = change_between(first, last, between or (BEFORE, AFTER)) if first and last else None
    gains = term_gains(records)
    evidence = Evidence(records, gains, change)
    findings = detect(evidence)
    errors = records.errors.patterns(_PATTERNS)
    evaluated = TaskCollector()
    for result in last.counted if last else ():
        evaluated.add([result])
    rates = evaluated.rates("the evaluation"), records.tasks.rates("training")
    tasks = tuple(found for found in rates if found is not None)
    whole = records.whole
    return RunAnalysis(
        path=str(folder.path),
        env=str(settings.get("env") or next((found.env_id for found in (first, last) if found), "")),
        model=str(settings.get("model", "")),
        steps=records.last_step,
        episodes=whole.episodes,
        faults=whole.count("faults"),
        recorded_share=_recorded_share(whole, records, settings),
        broken_lines=records.broken_lines,
        damage=tuple(records.damage),
        success=_success(whole),
        windows=_windows(records),
        curves=tuple(records.curves()),
        gains=gains,
        tools=_tools(records),
        errors=errors,
        error_share=records.errors.errors / max(1, records.errors.replies),
        endings={name: count / whole.episodes for name, count in whole.tally("ending").most_common()},
        tasks=tasks,
        change=change,
        usage=_usage(folder, records, whole),
        findings=tuple(findings),
        verdict=verdict_of(evidence, findings, last, tasks, errors),
    )


def _evaluations(
    folder: RunFolder, between: tuple[str, str] | None
) -> tuple[Evaluation | None, Evaluation | None]:
    first, second = names = between or (BEFORE, AFTER)
    for name in names if between is not None else ():
        if folder.evaluation(name) is None:
            known = sorted(file.stem for file in folder.evaluations.glob("*.json"))
            have = f"there are {', '.join(known)}" if known else "there are none"
            raise ConfigError(f"{folder.path} has no evaluation {name!r}{did_you_mean(name, known)}; {have}")
    return folder.evaluation(first), folder.evaluation(second)


def _comparisons(folders: Sequence[RunFolder]) -> tuple[EvaluationChange, ...]:
    last = []
    for folder in folders:
        found = folder.evaluation(AFTER) or folder.evaluation(BEFORE)
        if found is None:
            raise ConfigError(
                f"{folder.path} has no evaluation to compare: run art-trainer eval, or leave it out"
            )
        last.append((str(folder.path), found))
    (name, first), *others = last
    return tuple(change_between(first, other, (name, called)) for called, other in others)


def _success(sums: Sums) -> Interval | None:
    """The success rate; attempts of one group are alike, so they count as fewer."""
    rate, groups = sums.mean("success"), sums.count("compared")
    if rate is None:
        return None
    wins, both, sizes = (sums["grouped", part] for part in ("wins", "both", "sizes"))
    spread = wins - 2 * rate * both + rate * rate * sizes
    return clustered_rate_interval(rate, sums.episodes, spread, groups)


def _windows(records: RunRecords) -> tuple[WindowStats, ...]:
    """The recorded training in at most eight ranges of about as many steps each."""
    held = [(step, sums) for step, sums in records.windows.ranges() if sums.episodes]
    count = min(_WINDOWS, len(held))
    edges = [round(i * len(held) / count) for i in range(count + 1)] if count else []
    rows = []
    for start, end in pairwise(edges):
        sums = Sums(part for _, part in held[start:end])
        means = {name: mean for name in sums.names() if (mean := sums.mean(name)) is not None}
        last = min(held[end - 1][0] + records.windows.width - 1, records.last_recorded)
        rows.append(WindowStats(held[start][0], last, sums.episodes, _success(sums), means))
    return tuple(rows)


def _tools(records: RunRecords) -> tuple[ToolShare, ...]:
    """Calls by turn, most frequent first within each turn."""
    calls = {key: count for key, count in records.whole.items() if key[0] == "tool"}
    ordered = sorted(calls, key=lambda key: (key[1], -calls[key], key[2]))
    parts = records.whole, *records.thirds
    totals = [
        {turn: sum(sums.count(*key) for key in ordered if key[1] == turn) for turn in range(LATER_TURNS + 1)}
        for sums in parts
    ]
    rows = []
    for key in ordered:
        _, turn, tool = key
        shares = (s.count(*key) / max(1, total[int(turn)]) for s, total in zip(parts, totals, strict=True))
        rows.append(ToolShare(int(turn) + 1, turn == LATER_TURNS, str(tool), int(calls[key]), *shares))
    return tuple(rows)


def _recorded_share(whole: Sums, records: RunRecords, settings: Mapping[str, Any]) -> float | None:
    groups, size = settings.get("groups_per_step"), settings.get("num_generations")
    if not (isinstance(groups, int) and isinstance(size, int) and groups * size * records.last_step > 0):
        return None
    return min(1.0, (whole.episodes + whole.count("faults")) / (groups * size * records.last_step))


def _usage(folder: RunFolder, records: RunRecords, whole: Sums) -> dict[str, float]:
    logged = sum(sums.get(("num_tokens", "sum"), 0.0) for _, sums in records.metrics.ranges())
    names = sorted(file.stem for file in folder.evaluations.glob("*.json"))
    evaluations = [folder.evaluation(name) for name in names if not name.startswith(BASELINE)]
    evaluated = sum(result.tokens for found in evaluations if found is not None for result in found.results)
    found = {
        "sampled": logged or whole.get(("tokens", "sum")),
        "read": whole.get(("read_tokens", "sum")),
        "per_episode": whole.mean("tokens"),
        "evaluated": float(evaluated),
        **folder.cost(),
    }
    return {name: value for name, value in found.items() if value is not None}
