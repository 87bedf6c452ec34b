"""Analyses runs: one pass over each run's records, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from art_gym.errors import did_you_mean
from art_trainer.analysis.changes import change_between
from art_trainer.analysis.collecting import Collected, collect
from art_trainer.analysis.evidence import Evidence
from art_trainer.analysis.gains import term_gains
from art_trainer.analysis.results import (
    Analysis,
    Curve,
    EvaluationChange,
    JudgeScores,
    RunAnalysis,
    ToolShare,
    Usage,
    WindowRow,
)
from art_trainer.analysis.signs import cheating_signs
from art_trainer.analysis.standstill import standstill_signs
from art_trainer.analysis.task_rates import rates_of
from art_trainer.analysis.verdict import verdict_of
from art_trainer.analysis.windows import LATER_TURNS, Window, merged
from art_trainer.errors import ConfigError
from art_trainer.evaluation import Evaluation
from art_trainer.run_folder import AFTER, BASELINE, BEFORE, RunFolder
from art_trainer.statistics import Interval, wilson_interval

_WINDOWS = 8
_PATTERNS = 12


@dataclass(frozen=True, slots=True)
class Prices:
    """What tokens cost, in any one currency.

    Attributes:
        sampled: For a million tokens that the model writes.
        read: For a million that it reads.
    """

    sampled: float
    read: float = 0.0


def analyze(
    runs: Path | str | Sequence[Path | str],
    *,
    compare: bool = False,
    between: tuple[str, str] | None = None,
    prices: Prices | None = None,
) -> Analysis:
    """Say what runs did: whether they learned, where they fail, and whether they cheat.

    Args:
        runs: A run's folder, or several.
        compare: Also hold the last evaluation of each later run against that of the first.
        between: Names of two evaluations of each run (``evaluations/NAME.json``) to tell apart; by default
            those before and after training.
        prices: What tokens cost, for the cost of the run.

    Raises:
        FileNotFoundError: Where there is no such folder.
        ConfigError: Where a run has no evaluation of a name asked for, or none to compare.
        ValueError: Where a file is not what its name says.
    """
    folders = [RunFolder(Path(run)) for run in ([runs] if isinstance(runs, Path | str) else runs)]
    if not folders:
        raise ConfigError("an analysis needs at least one run's folder")
    for folder in folders:
        if not folder.path.is_dir():
            raise FileNotFoundError(f"no run folder at {folder.path}")
    found = tuple(_analyze_run(folder, between, prices) for folder in folders)
    return Analysis(found, _comparisons(folders) if compare else ())


def _analyze_run(folder: RunFolder, between: tuple[str, str] | None, prices: Prices | None) -> RunAnalysis:
    collected = collect(folder.path)
    settings = folder.settings()
    change, first, last = _evaluations(folder, between)
    gains = term_gains(collected)
    evidence = Evidence(collected, gains, change)
    signs = sorted(
        (*cheating_signs(evidence), *standstill_signs(evidence)), key=lambda sign: -sign.confidence.rank
    )
    errors = collected.errors.patterns(_PATTERNS)
    rates = (rates_of("the evaluation", last.counted) if last else None, collected.tasks.rates())
    tasks = tuple(found for found in rates if found is not None)
    whole = collected.whole()
    return RunAnalysis(
        path=str(folder.path),
        env=str(settings.get("env") or next((found.env_id for found in (first, last) if found), "")),
        model=str(settings.get("model", "")),
        steps=collected.last_step,
        episodes=whole.episodes,
        faults=whole.faults,
        recorded_share=_recorded_share(whole, collected, settings),
        broken_lines=collected.broken.lines,
        damage=tuple(collected.broken.words),
        success=_success(whole),
        windows=_rows(collected),
        curves=tuple(collected.curves()),
        gains=gains,
        tools=_tools(collected),
        errors=errors,
        error_share=collected.errors.errors / max(1, collected.errors.replies),
        endings={name: count / whole.episodes for name, count in whole.endings.most_common()},
        tasks=tasks,
        change=change,
        usage=_usage(folder, collected, whole, prices),
        judges=_judges(collected, whole),
        signs=tuple(signs),
        verdict=verdict_of(evidence, signs, last, tasks, errors),
    )


def _evaluations(
    folder: RunFolder, between: tuple[str, str] | None
) -> tuple[EvaluationChange | None, Evaluation | None, Evaluation | None]:
    """What changed between two evaluations, and the two.

    Raises:
        ConfigError: Where there is none of a name asked for.
    """
    names = between or (BEFORE, AFTER)
    first, second = (folder.evaluation(name) for name in names)
    for name, found in zip(names, (first, second), strict=True):
        if between is not None and found is None:
            known = sorted(file.stem for file in folder.evaluations.glob("*.json"))
            have = f"there are {', '.join(known)}" if known else "there are none"
            raise ConfigError(f"{folder.path} has no evaluation {name!r}{did_you_mean(name, known)}; {have}")
    change = None if first is None or second is None else change_between(first, second, names)
    return change, first, second


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


def _success(window: Window) -> Interval | None:
    return wilson_interval(window.successes, window.episodes) if window.told else None


def _rows(collected: Collected) -> tuple[WindowRow, ...]:
    """The recorded training in at most eight stretches of about as many steps each."""
    held = [(step, window) for step, window in collected.windows.items() if window.episodes]
    count = min(_WINDOWS, len(held))
    edges = [round(i * len(held) / count) for i in range(count + 1)] if count else []
    rows = []
    for start, end in pairwise(edges):
        window = merged([part for _, part in held[start:end]])
        last = held[end - 1][0] + collected.windows.width - 1
        rows.append(
            WindowRow(
                first_step=held[start][0],
                last_step=min(last, collected.last_recorded),
                episodes=window.episodes,
                success=_success(window),
                reward=window.mean("reward") or 0.0,
                turns=window.mean("turns") or 0.0,
                reply_length=window.mean("reply_length") or 0.0,
                tokens=window.mean("tokens"),
                invalid=window.mean("invalid") or 0.0,
                cut_off=window.mean("cut_off") or 0.0,
                terms={name: window.term_mean(name) for name in sorted(window.terms)},
            )
        )
    return tuple(rows)


def _tools(collected: Collected) -> tuple[ToolShare, ...]:
    """Calls by turn, most frequent first within each turn."""
    early, late = collected.thirds()
    whole = collected.whole()

    def share(window: Window, turn: int, tool: str) -> float:
        total = sum(count for (place, _), count in window.tools.items() if place == turn)
        return window.tools[turn, tool] / total if total else 0.0

    ordered = sorted(whole.tools.items(), key=lambda pair: (pair[0][0], -pair[1], pair[0][1]))
    return tuple(
        ToolShare(
            turn=turn + 1,
            later=turn == LATER_TURNS,
            tool=tool,
            count=count,
            share=share(whole, turn, tool),
            early=share(early, turn, tool),
            late=share(late, turn, tool),
        )
        for (turn, tool), count in ordered
    )


def _recorded_share(whole: Window, collected: Collected, settings: Mapping[str, Any]) -> float | None:
    groups, size = settings.get("groups_per_step"), settings.get("num_generations")
    if not (isinstance(groups, int) and isinstance(size, int) and groups * size * collected.last_step > 0):
        return None
    return min(1.0, (whole.episodes + whole.faults) / (groups * size * collected.last_step))


def _usage(folder: RunFolder, collected: Collected, whole: Window, prices: Prices | None) -> Usage:
    counted = whole.values.get("tokens")
    recorded = counted.mean * counted.count if counted is not None else None
    sampled = collected.sampled_tokens or recorded
    read = whole.values.get("read_tokens")
    evaluations = [
        folder.evaluation(file.stem)
        for file in sorted(folder.evaluations.glob("*.json"))
        if not file.stem.startswith(BASELINE)
    ]
    evaluated = sum(result.tokens for found in evaluations if found is not None for result in found.results)
    curve = collected.curve("completions/mean_length")
    per_episode = counted.mean if counted is not None else None
    if per_episode is None and curve is not None:
        per_episode = sum(curve.values) / len(curve.values)
    read_tokens = None if read is None else read.mean * read.count
    cost = None
    if prices is not None and sampled is not None:
        cost = (prices.sampled * (sampled + evaluated) + prices.read * (read_tokens or 0.0)) / 1e6
    return Usage(sampled, read_tokens, float(evaluated), per_episode, cost)


def _judges(collected: Collected, whole: Window) -> tuple[JudgeScores, ...]:
    found = []
    for name, scores in sorted(whole.judges.items()):
        points = [
            (float(step), window.judges[name].mean)
            for step, window in collected.windows.items()
            if name in window.judges
        ]
        curve = Curve(f"judge/{name}", tuple(x for x, _ in points), tuple(y for _, y in points))
        found.append(JudgeScores(name, scores.count, scores.mean, curve))
    return tuple(found)
