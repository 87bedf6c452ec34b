"""Tables of results and settings for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from art_trainer.commands.settings import DEFAULT, Settings
from art_trainer.display import number, percent, points
from art_trainer.evaluation import Comparison, Evaluation
from art_trainer.statistics import holm


def results_table(rows: Sequence[tuple[str, Evaluation]]) -> Table:
    """Success with its 95% interval, mean reward, turns, tokens and invalid actions, a row a policy."""
    table = Table(title=_title(rows), title_justify="left", title_style="", caption_justify="left")
    table.add_column("policy", overflow="fold", min_width=9)
    for heading in ("success", "mean reward", "turns", "tokens", "invalid"):
        table.add_column(heading, justify="right", no_wrap=True)
    faults = any(evaluation.faults for _, evaluation in rows)
    if faults:
        table.add_column("faults", justify="right")
        table.caption = "Faults (of a server or environment) are in no average."
    for name, evaluation in rows:
        tokens = f"{evaluation.tokens:.0f}" if evaluation.tokens else "–"
        cells: list[str | Text] = [
            name,
            _two_lines(percent(evaluation.success)),
            _two_lines(number(evaluation.reward)),
            f"{evaluation.turns:.1f}",
            tokens,
            f"{100 * evaluation.invalid_rate:.1f}%",
        ]
        table.add_row(*cells, *([str(evaluation.faults)] if faults else []))
    return table


def _two_lines(words: str) -> Text:
    """The interval below the value, so that the table fits into 80 columns."""
    value, _, interval = words.partition(" ")
    return Text.assemble(value, (f"\n{interval.strip('()')}" if interval else "", "dim"))


def _title(rows: Sequence[tuple[str, Evaluation]]) -> str:
    first = rows[0][1]
    split = f", {first.split} split" if first.split else ""
    samples = f" ({first.samples} attempts at each start)" if first.samples > 1 else ""
    return f"{first.env_id}{split}, {len(first.results)} episodes{samples}, 95% intervals"


def terms_table(rows: Sequence[tuple[str, Evaluation]]) -> Table | None:
    """The mean of each named part of the reward; ``None`` where nothing is named."""
    names = list(dict.fromkeys(name for _, evaluation in rows for name in evaluation.score_terms))
    if not names:
        return None
    table = Table(title="What the reward is made of", title_justify="left", title_style="")
    table.add_column("term")
    for name, _ in rows:
        table.add_column(name, justify="right", overflow="fold")
    for term in names:
        values = [evaluation.score_terms.get(term) for _, evaluation in rows]
        table.add_row(term, *("–" if value is None else f"{value:+.3f}" for value in values))
    return table


def pass_table(rows: Sequence[tuple[str, Evaluation]]) -> Table | None:
    """Pass@k for k = 1, 2, 4, … up to the attempts at each start; ``None`` where there was only one."""
    samples = rows[0][1].samples
    if samples < 2 or not any(evaluation.tells_success for _, evaluation in rows):
        return None
    counts = [2**power for power in range(samples.bit_length()) if 2**power < samples]
    table = Table(title="Solved by at least one of k attempts", title_justify="left", title_style="")
    table.add_column("policy", overflow="fold", min_width=9)
    for k in (*counts, samples):
        table.add_column(f"pass@{k}", justify="right", no_wrap=True)
    for name, evaluation in rows:
        table.add_row(name, *(_two_lines(percent(evaluation.pass_at(k))) for k in (*counts, samples)))
    return table


def strata_table(rows: Sequence[tuple[str, Evaluation]], field: str, metric: str) -> Table:
    """A metric for each value of a field of the tasks, a column a policy.

    Args:
        rows: Name and evaluation of each policy.
        field: The field, such as ``difficulty``.
        metric: As :meth:`~art_trainer.evaluation.Evaluation.measured` takes it.

    Raises:
        ValueError: Where no task has the field.
    """
    table = Table(title=f"{metric} by {field}", title_justify="left", title_style="")
    table.add_column(field)
    table.add_column("episodes", justify="right")
    parts = {name: evaluation.by(field) for name, evaluation in rows}
    for name, _ in rows:
        table.add_column(name, justify="right", overflow="fold")
    shown = percent if metric == "success" else number
    for value in dict.fromkeys(value for told in parts.values() for value in told):
        found = [parts[name].get(value) for name, _ in rows]
        episodes = max(len(part.results) for part in found if part is not None)
        cells = [Text("–") if part is None else _two_lines(shown(part.measured(metric))) for part in found]
        table.add_row("none" if value is None else str(value), str(episodes), *cells)
    return table


def comparison_lines(*comparisons: Comparison) -> list[str]:
    """Paired differences in words, with p-values corrected for how many comparisons there are."""
    corrected = [
        holm([1.0 if p is None else p for p in family])
        for family in zip(*((one.success_p, one.reward_p) for one in comparisons), strict=True)
    ]
    lines = []
    for place, one in enumerate(comparisons):
        pair = f"{one.second} minus {one.first}"
        for words, interval, p, adjusted in (
            (f"success: {points(one.success)}", one.success, one.success_p, corrected[0][place]),
            (
                f"mean reward: {number(one.reward, signed=True)}",
                one.reward,
                one.reward_p,
                corrected[1][place],
            ),
        ):
            if interval is not None:
                chance = "" if p is None else f", {_p_words(p, adjusted, len(comparisons))}"
                lines.append(f"{pair}, {words}{chance}{_verdict(interval.excludes_zero)}")
    return lines


def _p_words(p: float, adjusted: float, comparisons: int) -> str:
    corrected = f" ({adjusted:.2g} corrected for {comparisons} comparisons)" if comparisons > 1 else ""
    return f"p {p:.2g}{corrected}"


def _verdict(certain: bool) -> str:
    return "" if certain else ", could be luck"


def settings_table(settings: Settings) -> tuple[Table, Text]:
    """What was set, with where it came from, and below it, in one paragraph, what was left at its default."""
    table = Table(title="Settings", title_justify="left", title_style="")
    table.add_column("setting")
    table.add_column("value", overflow="fold")
    table.add_column("from", style="dim")
    left = []
    for name, value in settings.to_mapping().items():
        if settings.sources[name] == DEFAULT:
            left.append(f"{name}={value}")
        else:
            table.add_row(name, Text(str(value)), settings.sources[name])
    return table, Text(f"Defaults: {', '.join(left)}", style="dim")


def episode_bar(console: Console) -> Progress:
    """A bar that counts episodes and is gone afterwards; silent where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
