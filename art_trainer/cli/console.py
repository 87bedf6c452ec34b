"""Tables of results and settings, and the progress of evaluations, for the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from art_trainer.cli.live_view import is_live
from art_trainer.formatting import duration, number, percent, points
from art_trainer.rollout.evaluate import Comparison, Evaluation
from art_trainer.rollout.statistics import holm
from art_trainer.training.run_settings import DEFAULT, RESUMED, Settings


def make_table(title: str | None, left: Iterable[str], right: Iterable[str], caption: str = "") -> Table:
    """A table whose first columns hold texts, and whose others hold numbers."""
    table = Table(
        title=title, title_justify="left", title_style="", caption=caption or None, caption_justify="left"
    )
    for heading in left:
        table.add_column(heading, overflow="fold", min_width=min(9, len(heading) + 3))
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def two_lines(words: str) -> Text:
    """The interval below the value, so that the table fits into 80 columns."""
    value, _, interval = words.partition(" ")
    return Text.assemble(value, (f"\n{interval.strip('()')}" if interval else "", "dim"))


Rows = Sequence[tuple[str, Evaluation]]
"""Names and evaluations of policies."""


def results_table(rows: Rows) -> Table:
    """A row for each policy: success with its 95% interval, mean reward, turns, tokens, invalid actions."""
    first = rows[0][1]
    split = f", {first.split} split" if first.split else ""
    samples = f" ({first.samples} attempts at each start)" if first.samples > 1 else ""
    tasks, count = len({result.task_id for result in first.results}), len(first.results)
    repeated = tasks > 1 and tasks * first.samples < count
    episodes = f"{count} episodes of {tasks} tasks" if repeated else f"{count} episodes"
    title = f"{first.env_id}{split}, {episodes}{samples}, 95% intervals"
    headings = ["success", "mean reward", "turns", "tokens", "invalid"]
    faults = any(evaluation.faults for _, evaluation in rows)
    if faults:
        headings.append("faults")
    caption = "Faults of a server or environment are left out of the averages." if faults else ""
    table = make_table(title, ["policy"], headings, caption)
    for name, evaluation in rows:
        cells: list[str | Text] = [
            name,
            two_lines(percent(evaluation.success)),
            two_lines(number(evaluation.reward)),
            f"{evaluation.turns:.1f}",
            f"{evaluation.tokens:.0f}" if evaluation.tokens else "–",
            f"{100 * evaluation.invalid_rate:.1f}%",
        ]
        table.add_row(*cells, *([str(evaluation.faults)] if faults else []))
    return table


def pass_table(rows: Rows) -> Table | None:
    """Pass@k for k = 1, 2, 4, … up to the attempts at each start; ``None`` if there was only one."""
    samples = rows[0][1].samples
    if samples < 2 or not any(evaluation.reports_success for _, evaluation in rows):
        return None
    counts = [*(2**power for power in range(samples.bit_length()) if 2**power < samples), samples]
    title = "Solved by at least one of k attempts"
    table = make_table(title, ["policy"], [f"pass@{k}" for k in counts])
    for name, evaluation in rows:
        table.add_row(name, *(two_lines(percent(evaluation.pass_at(k))) for k in counts))
    return table


def terms_table(rows: Rows) -> Table | None:
    """The mean of each named part of the reward; ``None`` if nothing is named."""
    names = dict.fromkeys(name for _, evaluation in rows for name in evaluation.score_terms)
    if not names:
        return None
    table = make_table("What the reward is made of", ["term"], [name for name, _ in rows])
    for term in names:
        values = [evaluation.score_terms.get(term) for _, evaluation in rows]
        table.add_row(term, *("–" if value is None else f"{value:+.3f}" for value in values))
    return table


def strata_table(rows: Rows, field: str) -> Table:
    """Results for each value of a field of the tasks, a column a policy; a ValueError without the field.

    They are the success rate if the environment reports success, else the mean reward.
    """
    success = any(evaluation.reports_success for _, evaluation in rows)
    title = f"{'success' if success else 'reward'} by {field}"
    table = make_table(title, [field], ["episodes", *(name for name, _ in rows)])
    parts = [evaluation.by(field) for _, evaluation in rows]

    def shown(part: Evaluation) -> str:
        return percent(part.success) if success else number(part.reward)

    for value in dict.fromkeys(value for part in parts for value in part):
        found = [part.get(value) for part in parts]
        episodes = max(len(part.results) for part in found if part is not None)
        cells = [Text("–") if part is None else two_lines(shown(part)) for part in found]
        table.add_row("none" if value is None else str(value), str(episodes), *cells)
    return table


def comparison_lines(*comparisons: Comparison) -> list[str]:
    """Paired differences, with p-values corrected for the number of comparisons (Holm)."""
    lines = []
    adjusted = {
        metric: holm([1.0 if (p := getattr(one, metric)) is None else p for one in comparisons])
        for metric in ("success_p", "reward_p")
    }
    for place, one in enumerate(comparisons):
        for what, interval, metric, figure in (
            ("success", one.success, "success_p", points(one.success)),
            ("mean reward", one.reward, "reward_p", number(one.reward, signed=True)),
        ):
            if interval is not None:
                p, corrected = getattr(one, metric), adjusted[metric][place]
                of_several = f" ({corrected:.2g} corrected for {len(comparisons)} comparisons)"
                chance = "" if p is None else f", p {p:.2g}{of_several if len(comparisons) > 1 else ''}"
                doubt = "" if interval.excludes_zero else ", could be chance"
                lines.append(f"{one.second} minus {one.first}, {what}: {figure}{chance}{doubt}")
    return lines


def print_settings(settings: Settings, console: Console) -> None:
    """Print the settings that were set for this run and their sources; all if they are ``verbose``."""
    hidden = () if settings.verbose else (DEFAULT, RESUMED)
    table = make_table("Settings", ["setting", "value", "from"], [])
    for name, value in settings.to_mapping().items():
        if settings.sources[name] not in hidden:
            table.add_row(name, Text(str(value)), Text(settings.sources[name], style="dim"))
    console.print(table)
    if hidden:
        words = f"All settings: {settings.folder.settings_file}, or --verbose."
        console.print(Text(words, style="dim"), soft_wrap=True)


# ----------------------------------------------------------------------
# Progress of episodes and imitation: bars in a terminal, plain lines everywhere else.


def unless_quiet(console: Console, settings: Settings) -> Console:
    """Where a run shows its settings and progress: nowhere if it is ``quiet``."""
    return Console(quiet=True) if settings.quiet else console


@contextmanager
def episode_bar(console: Console, name: str, total: int | None) -> Iterator[Callable[[object], None]]:
    """Show progress within the context: a bar in a terminal, elsewhere a line a minute.

    It gives what to call for each episode, or with the ``step`` and ``steps`` of an optimizer step. A step 1
    begins another round.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not is_live(console)) as bar:
        bar.add_task(name, total=total)
        (task,) = bar.tasks
        began = shown = time.monotonic()
        rounds = 0

        def advance(done: object) -> None:
            nonlocal began, shown, rounds
            if isinstance(done, Mapping):
                rounds += done["step"] == 1
                label = f"{name}, round {rounds}" if rounds > 1 else name
                bar.update(task.id, completed=done["step"], total=done["steps"], description=label)
            else:
                bar.advance(task.id)
            now = time.monotonic()
            if task.completed == 1:
                began = now  # of another round of steps
            elif bar.disable and now - shown >= _LOG_SECONDS:
                shown, pace = now, f"{task.description}: {task.completed:.0f}"
                if task.total is not None:
                    left = (now - began) / (task.completed - 1) * (task.total - task.completed)
                    pace += f"/{task.total:.0f}, {duration(left)} left"
                console.print(pace, highlight=False, soft_wrap=True)

        yield advance


_LOG_SECONDS = 60.0
