"""Turns a run's folder into one page that opens offline.

The page is made from the files alone, so it can be written at any moment: of a run that is still going, of
one that was interrupted, and of one that was killed. Everything an episode holds is foreign text: the
template escapes it, and the page's policy lets a browser run no script and load nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.analysis import analyze
from art_trainer.analysis.page import analysis_charts, render_page
from art_trainer.charts import Chart, line_chart
from art_trainer.display import duration, number, percent, points
from art_trainer.episodes import Episode
from art_trainer.evaluation import Evaluation, compare
from art_trainer.run_folder import AFTER, BEFORE, Lines, RunFolder
from art_trainer.statistics import Interval

_CURVES = (
    ("reward", "Reward", "mean of the sampled episodes"),
    ("success", "Success", "share of the sampled episodes"),
    ("eval_success", "Held-out success", "share of the evaluated episodes"),
    ("kl", "KL", "nats a token"),
    ("entropy", "Entropy", "nats a token"),
    ("loss", "Loss", "what was minimised"),
    ("invalid_actions", "Invalid actions", "share of the replies"),
    ("turns", "Turns", "replies an episode"),
    ("tokens_per_second", "Speed", "tokens a second"),
)
_SAMPLES = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One policy of the result table."""

    label: str
    kind: str
    evaluation: Evaluation

    @property
    def success(self) -> Interval | None:
        """The success rate."""
        return self.evaluation.success


@dataclass(frozen=True, slots=True)
class Sample:
    """One task as played before and after training."""

    task_id: str
    verdict: str
    before: Episode | None
    after: Episode | None

    @property
    def sides(self) -> tuple[tuple[str, Episode], ...]:
        """The episodes there are, each with its heading."""
        both = (("Before", self.before), ("After", self.after))
        return tuple((name, episode) for name, episode in both if episode is not None)


def write_report(run_dir: Path | str) -> Path:
    """Write ``report.html`` into a run's folder, from whatever files are there.

    Args:
        run_dir: The run's folder; see :mod:`art_trainer.run_folder`.

    Returns:
        The path of the report.

    Raises:
        FileNotFoundError: Where there is no such folder.
        ValueError: Where one of its files is not what its name says.
    """
    folder = RunFolder(Path(run_dir))
    if not folder.path.is_dir():
        raise FileNotFoundError(f"no run folder at {folder.path}")
    page = render(folder)
    # Lone surrogates were made visible; "replace" is for a stray one in a setting.
    folder.report_file.write_text(page, encoding="utf-8", errors="replace")
    return folder.report_file


def render(folder: RunFolder) -> str:
    """The report's HTML."""
    metrics = folder.metrics()
    settings = folder.settings()
    before, after = folder.evaluation(BEFORE), folder.evaluation(AFTER)
    samples = choose_samples(folder.transcripts(BEFORE), folder.transcripts(AFTER))
    rows = _rows(before, after, folder.baselines())
    shared = shared_instructions([e for sample in samples for _, e in sample.sides])
    analysis = analyze(folder.path).runs[0]
    return render_page(
        "report.html.j2",
        analysis=analysis,
        analysis_charts=analysis_charts(analysis),
        model=str(settings.get("model", "A model")),
        env_id=str(settings.get("env") or (before.env_id if before else "an environment")),
        facts=_facts(settings, metrics),
        headline=headline(before, after),
        notes=_notes(metrics, before, after),
        rows=rows,
        terms=_term_names(rows),
        charts=curves(metrics),
        samples=samples,
        shared=shared,
        settings={name: _plain(value) for name, value in settings.items()},
    )


def headline(before: Evaluation | None, after: Evaluation | None) -> str:
    """The result in one sentence."""
    if before is None and after is None:
        return "Nothing was evaluated yet."
    if before is None or after is None:
        only = before or after
        assert only is not None
        when = "Before" if after is None else "After"
        how = (
            f"success was {percent(only.success)}"
            if only.success
            else f"the mean reward was {number(only.reward)}"
        )
        return f"{when} training, {how} on {_count(only)}; there is no evaluation to compare it with."
    try:
        difference = compare(before, after)
    except ValueError as error:
        return f"{str(error)[0].upper()}{str(error)[1:]}."
    if difference.success is not None and before.success is not None and after.success is not None:
        verb = _verb(difference.success)
        return (
            f"Success {verb} from {100 * before.success.value:.0f}% to {100 * after.success.value:.0f}% "
            f"on the same {_count(after)}: {points(difference.success)}."
            + (f" {_reward_sentence(before, after, difference.reward)}" if verb == "went" else "")
        )
    return _reward_sentence(before, after, difference.reward)


def _reward_sentence(before: Evaluation, after: Evaluation, difference: Interval) -> str:
    assert before.reward is not None
    assert after.reward is not None
    return (
        f"The mean reward {_verb(difference)} from {number(before.reward)} to {number(after.reward)} on the "
        f"same {_count(after)}: {number(difference, signed=True)}, 95% interval."
    )


def _verb(difference: Interval) -> str:
    if not difference.excludes_zero:
        return "went"
    return "rose" if difference.value > 0 else "fell"


def _count(evaluation: Evaluation) -> str:
    held_out = f" of the {evaluation.split} split" if evaluation.split else ""
    return f"{len(evaluation.results)} episodes{held_out}"


def curves(metrics: Lines) -> list[Chart]:
    """The charts of whatever was measured."""
    charts = []
    for name, title, note in _CURVES:
        found = [(i, r[name]) for i, r in enumerate(metrics.records) if isinstance(r.get(name), int | float)]
        steps = [float(metrics.records[i].get("step", i)) for i, _ in found]
        chart = line_chart(title, note, steps, [float(value) for _, value in found])
        if chart is not None:
            charts.append(chart)
    return charts


def choose_samples(before: Sequence[Episode], after: Sequence[Episode]) -> list[Sample]:
    """Pick tasks to show: a few of each outcome, in the order of the starts, not the prettiest ones."""
    later = {(episode.task_id, episode.seed): episode for episode in after}
    if before and after:
        pairs = [(e, later.get((e.task_id, e.seed))) for e in before]
        samples = [Sample(e.task_id, _verdict(e, other), e, other) for e, other in pairs if other is not None]
    else:
        samples = [
            Sample(e.task_id, _outcome(e), e if before else None, None if before else e)
            for e in (before or after)
        ]
    kinds: dict[str, list[Sample]] = {}
    for sample in samples:
        kinds.setdefault(sample.verdict, []).append(sample)
    chosen: list[Sample] = []
    while len(chosen) < min(_SAMPLES, len(samples)):
        chosen += [queue.pop(0) for queue in kinds.values() if queue]
    return chosen[:_SAMPLES]


def _verdict(before: Episode, after: Episode) -> str:
    return f"{_outcome(before)} before, {_outcome(after)} after"


def _outcome(episode: Episode) -> str:
    if episode.failed:
        return "broken off by a fault"
    if episode.success is None:
        return f"reward {'above' if episode.reward > 0 else 'not above'} 0"
    return "solved" if episode.success else "not solved"


def shared_instructions(episodes: Sequence[Episode]) -> str:
    """The paragraphs that all first observations begin with: shown once instead of in every episode."""
    texts = sorted({episode.observation for episode in episodes})
    if len(texts) < 2:
        return ""
    low, high = texts[0], texts[-1]
    same = 0
    while same < min(len(low), len(high)) and low[same] == high[same]:
        same += 1
    return low[: low.rfind("\n\n", 0, same) + 2] if "\n\n" in low[:same] else ""


def _rows(
    before: Evaluation | None, after: Evaluation | None, baselines: Mapping[str, Evaluation]
) -> list[Row]:
    rows = [Row(f"baseline {name}", "baseline", found) for name, found in baselines.items()]
    if before is not None:
        rows.append(Row("before training", "before", before))
    if after is not None:
        rows.append(Row("after training", "after", after))
    return rows


def _term_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.evaluation.score_terms))


def _facts(settings: Mapping[str, Any], metrics: Lines) -> list[str]:
    """What was trained, in short phrases."""
    facts = []
    if metrics.records:
        last = metrics.records[-1].get("step", len(metrics.records))
        of = f" of {settings['max_steps']}" if "max_steps" in settings else ""
        facts.append(f"{last:g}{of} steps")
    if "groups_per_step" in settings and "num_generations" in settings:
        facts.append(f"{settings['groups_per_step']} groups of {settings['num_generations']} a step")
    if "seed" in settings:
        facts.append(f"seed {settings['seed']}")
    seconds = [_seconds(record) for record in metrics.records]
    if sum(seconds) > 0:
        facts.append(f"{duration(sum(seconds))} of training")
    return facts


def _seconds(record: Mapping[str, Any]) -> float:
    return sum(
        float(record[name])
        for name in ("time/rollout", "time/update")
        if isinstance(record.get(name), int | float)
    )


def _notes(metrics: Lines, before: Evaluation | None, after: Evaluation | None) -> list[str]:
    """What a reader must know to trust the page."""
    notes = []
    if after is None and before is not None:
        notes.append(
            "The run had not finished when this page was written: there is no evaluation after training."
        )
    if metrics.broken:
        notes.append(
            f"Not whole in metrics.jsonl, as happens when a run is killed, and left out: {metrics.broken} "
            f"line{'s' if metrics.broken > 1 else ''}."
        )
    for name, evaluation in (("before", before), ("after", after)):
        if evaluation is not None and evaluation.faults:
            notes.append(
                f"A fault ended {evaluation.faults} of the {len(evaluation.results)} episodes {name} "
                "training; they are in no average."
            )
    return notes


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)
