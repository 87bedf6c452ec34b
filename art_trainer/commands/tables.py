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
    return f"{first.env_id}{split}, {len(first.results)} episodes, 95% intervals"


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


def comparison_lines(comparison: Comparison) -> list[str]:
    """The paired difference in words."""
    pair = f"{comparison.second} minus {comparison.first}"
    lines = []
    if comparison.success is not None:
        lines.append(
            f"{pair}, success: {points(comparison.success)}{_verdict(comparison.success.excludes_zero)}"
        )
    reward = number(comparison.reward, signed=True)
    lines.append(f"{pair}, mean reward: {reward}{_verdict(comparison.reward.excludes_zero)}")
    return lines


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
