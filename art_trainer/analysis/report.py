"""Writes a training report: one HTML page that opens offline.

It is made from the files of a run folder alone, so it can be written at any time: of a run in progress, of an
interrupted one and of a killed one. The text of episodes is untrusted: the template escapes it, and the
page's Content Security Policy allows no script and no request.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

from art_trainer.analysis.analyze import analyze
from art_trainer.analysis.render import main_charts, more_charts, render_page
from art_trainer.formatting import duration, number, percent, points
from art_trainer.rollout.evaluate import Evaluation, compare
from art_trainer.tracking.run_dir import AFTER, BEFORE, UNTRAINED, Lines, RunFolder, write_text
from art_trainer.types import Episode, Interval

_SAMPLES = 6


@dataclass(frozen=True, slots=True)
class Sample:
    """One task as played before and after training, or in one of the two."""

    task_id: str
    verdict: str
    sides: tuple[tuple[str, Episode], ...]


def write_report(run_dir: Path | str) -> Path:
    """Write ``report.html`` into a run's folder, from the files that exist.

    Args:
        run_dir: The run's folder; see :mod:`art_trainer.tracking.run_dir`.

    Returns:
        The path of the report.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If one of its files is malformed.
    """
    folder = RunFolder(Path(run_dir))
    collected = gc.isenabled()
    gc.disable()  # it would look at millions of turns for cycles again and again, and double the time
    try:
        page = render(folder)
    finally:
        if collected:
            gc.enable()
    write_text(folder.report_file, page)
    return folder.report_file


def render(folder: RunFolder) -> str:
    """The report's HTML."""
    metrics, settings = folder.metrics(), folder.settings()
    before, after = folder.evaluation(BEFORE), folder.evaluation(AFTER)
    samples = choose_samples(folder.transcripts(BEFORE), folder.transcripts(AFTER))
    policies = [("baseline", f"baseline {name}", found) for name, found in folder.baselines().items()]
    if untrained := folder.evaluation(UNTRAINED):
        policies.append((BEFORE, "untrained", untrained))
    policies += [(name, f"{name} training", it) for name, it in ((BEFORE, before), (AFTER, after)) if it]
    analysis = analyze(folder.path).runs[0]
    return render_page(
        "report.html.j2",
        analysis=analysis,
        charts=main_charts(analysis),
        analysis_charts=more_charts(analysis),
        model=str(settings.get("model", "A model")),
        env_id=str(settings.get("env") or (before.env_id if before else "an environment")),
        facts=_facts(settings, metrics),
        headline=headline(before, after),
        notes=_notes(before, after),
        policies=policies,
        terms=list(dict.fromkeys(name for *_, found in policies for name in found.score_terms)),
        samples=samples,
        shared=shared_instructions([episode for sample in samples for _, episode in sample.sides]),
        settings={name: _plain(value) for name, value in settings.items()},
    )


def headline(before: Evaluation | None, after: Evaluation | None) -> str:
    """The result in one sentence."""
    if before is None or after is None:
        only = before or after
        if only is None:
            return "Nothing was evaluated yet."
        when = "Before" if after is None else "After"
        rate = f"success was {percent(only.success)}"
        how = rate if only.success else f"the mean reward was {number(only.reward)}"
        return f"{when} training, {how} on {_count(only)}; there is no evaluation to compare it with."
    try:
        difference = compare(before, after)
    except ValueError as error:
        return f"{str(error)[0].upper()}{str(error)[1:]}."
    reward = (
        f"The mean reward {_verb(difference.reward)} from {number(before.reward)} to {number(after.reward)} "
        f"on the same {_count(after)}: {number(difference.reward, signed=True)}, 95% interval."
    )
    if difference.success is None or before.success is None or after.success is None:
        return reward
    verb = _verb(difference.success)
    return (
        f"Success {verb} from {100 * before.success.value:.0f}% to {100 * after.success.value:.0f}% "
        f"on the same {_count(after)}: {points(difference.success)}."
        + (f" {reward}" if verb == "went" else "")
    )


def _verb(difference: Interval) -> str:
    if not difference.excludes_zero:
        return "went"
    return "rose" if difference.value > 0 else "fell"


def _count(evaluation: Evaluation) -> str:
    held_out = f" of the {evaluation.split} split" if evaluation.split else ""
    return f"{len(evaluation.results)} episodes{held_out}"


def choose_samples(before: Sequence[Episode], after: Sequence[Episode]) -> list[Sample]:
    """Choose tasks to show: a few of each outcome, in the order of the evaluation."""
    kinds: dict[str, list[Sample]] = {}
    later = {(episode.task_id, episode.seed): episode for episode in after}
    for episode in before or after:
        other = later.get((episode.task_id, episode.seed))
        if not (before and after):
            sample = Sample(episode.task_id, _outcome(episode), (("Before" if before else "After", episode),))
        elif other is not None:
            verdict = f"{_outcome(episode)} before, {_outcome(other)} after"
            sample = Sample(episode.task_id, verdict, (("Before", episode), ("After", other)))
        else:
            continue
        kinds.setdefault(sample.verdict, []).append(sample)
    # One of each kind, then the second of each, and so on.
    ranked = [sample for one_each in zip_longest(*kinds.values()) for sample in one_each if sample]
    return ranked[:_SAMPLES]


def _outcome(episode: Episode) -> str:
    if episode.failed:
        return "ended by a fault"
    if episode.success is None:
        return f"reward {'above' if episode.reward > 0 else 'not above'} 0"
    return "solved" if episode.success else "not solved"


def shared_instructions(episodes: Sequence[Episode]) -> str:
    """The paragraphs that all first observations begin with, to be shown once."""
    texts = {episode.observation for episode in episodes}
    low, high = min(texts, default=""), max(texts, default="")
    pairs = zip(low, high, strict=False) if low != high else ()
    same = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return same[: same.rfind("\n\n") + 2] if "\n\n" in same else ""


def _facts(settings: Mapping[str, Any], metrics: Lines) -> list[str]:
    """Facts about the training, as short phrases."""
    steps = max((record.get("step", 0) for record in metrics.records), default=0)
    of = f" of {settings['max_steps']}" if "max_steps" in settings else ""
    times = ("time/rollout", "time/update")
    seconds = sum(record.get(name, 0.0) for record in metrics.records for name in times)
    facts = {f"{steps:g}{of} steps": steps, f"{duration(seconds)} of training": seconds}
    return [fact for fact, known in facts.items() if known]


def _notes(before: Evaluation | None, after: Evaluation | None) -> list[str]:
    """What a reader has to know."""
    notes = []
    if after is None and before is not None:
        notes.append(
            "The run had not finished when this page was written; there is no evaluation after training."
        )
    for name, evaluation in ((BEFORE, before), (AFTER, after)):
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
