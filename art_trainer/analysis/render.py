"""Shows an analysis: the same tables in the terminal and in a run's report, which opens offline."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich import table as rich_table
from rich.console import Console, RenderableType
from rich.text import Text

from art_gym.terminal import visible
from art_trainer.analysis.analyze import Analysis, RunAnalysis
from art_trainer.analysis.detectors import Confidence, Finding
from art_trainer.analysis.run_records import JUDGE, TERM
from art_trainer.analysis.svg_charts import Chart, line_chart
from art_trainer.analysis.task_rates import TaskRates
from art_trainer.formatting import duration, number, percent, short

_STYLES = {
    Confidence.STRONG: "bold red",
    Confidence.LIKELY: "red",
    Confidence.POSSIBLE: "yellow",
    Confidence.NONE: "green",
    Confidence.UNKNOWN: "dim",
}
_RARE = 0.005
_EXAMPLE = 300


@dataclass(frozen=True, slots=True)
class Table:
    """A table for the terminal and the page; what follows the first line of a cell is less important.

    Attributes:
        title: Above it.
        headings: One a column; the first column stands left, the others right.
        rows: The cells.
        note: Below it.
        details: Whether the page shows it only when it is opened.
        words: Whether the last column is text, which stands left.
        most: Most rows in the terminal.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    details: bool = False
    words: bool = False
    most: int = 10


def tables(run: RunAnalysis) -> list[Table]:
    """The tables of an analysis that are not empty."""
    found = [_windows(run), _gains(run), _tools(run), _errors(run), *map(_tasks, run.tasks)]
    return [table for table in found if table.rows]


def _windows(run: RunAnalysis) -> Table:
    rows = [
        [
            row.steps,
            str(row.episodes),
            percent(row.success),
            short(row.means["reward"]),
            f"{row.means['turns']:.1f}",
            f"{row.means['reply_length']:.0f}",
            f"{row.means['tokens']:.0f}" if "tokens" in row.means else "–",
            f"{100 * row.means['invalid_actions']:.1f}%",
            f"{100 * row.means['cut_off']:.1f}%",
        ]
        for row in run.windows
    ]
    headings = ("steps", "count", "success", "reward", "turns", "reply", "tokens", "invalid", "cut off")
    overall = f"Overall success: {percent(run.success)}; 95% intervals"
    return Table("Training by range of steps", headings, rows, f"{overall}. Reply: characters.")


def _gains(run: RunAnalysis) -> Table:
    rows = [
        [
            gain.name,
            short(gain.early),
            short(gain.late),
            f"{gain.change:+.3g}",
            "–" if gain.share is None else f"{round(100 * gain.share)}%",
            f"{gain.explained:+.3g}",
        ]
        for gain in run.gains
    ]
    headings = ("term", "early", "late", "change", "share", "explained by success")
    return Table("Change of the reward by term, first third to last third", headings, rows)


def _tools(run: RunAnalysis) -> Table:
    turns: dict[str, list[str]] = {}
    for tool in run.tools:
        if tool.share >= _RARE:
            shares = f"{100 * tool.share:.0f}% ({100 * tool.early:.0f} → {100 * tool.late:.0f})"
            turns.setdefault(f"{tool.turn}{'+' if tool.later else ''}", []).append(f"{tool.tool} {shares}")
    rows = [[turn, ", ".join(shares)] for turn, shares in turns.items()]
    title = "Actions by turn: share of the replies (early → late)"
    return Table(title, ("turn", "actions"), rows, details=True, words=True, most=4)


def _errors(run: RunAnalysis) -> Table:
    rows = [
        [
            error.kind.replace("_", " "),
            f"{error.count} ({100 * error.share:.0f}%)",
            f"{error.message or '(no message)'}\n{error.where}: "
            f"{' '.join(error.example_reply.split())[:_EXAMPLE]}",
        ]
        for error in run.errors
    ]
    title = f"Errors ({100 * run.error_share:.1f}% of the replies had no valid call)"
    headings = ("kind", "count", "message, and the first example")
    return Table(title, headings, rows, details=True, words=True, most=6)


def _tasks(tasks: TaskRates) -> Table:
    rows = [
        [f"{kind}{rate.task_id}", f"{100 * rate.rate:.0f}%", str(rate.episodes), short(rate.reward)]
        for kind, rates in (("all ", tasks.families), ("", tasks.hardest))
        for rate in rates
    ]
    solved = f"{tasks.always} always solved, {tasks.sometimes} sometimes, {tasks.never} never"
    headings = ("hardest first", "solved", "episodes", "reward")
    return Table(f"Tasks in {tasks.of}", headings, rows, f"{tasks.tasks} tasks: {solved}.", details=True)


# The terminal.


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Print an analysis, run by run, then the comparison of the runs."""
    for run in analysis.runs:
        console.rule(Text(visible(f"{run.path}: {run.model or 'a model'} on {run.env or 'an environment'}")))
        for part in _parts(run):
            console.print(part, soft_wrap=isinstance(part, Text))
    for change in analysis.comparisons:
        console.rule(Text(f"{change.second} against {change.first}"))
        console.print(Text("\n".join(change.lines())), soft_wrap=True)


def _parts(run: RunAnalysis) -> Iterator[RenderableType]:
    verdict = run.verdict
    for warning in warnings_of(run):
        yield Text.assemble(("Warning: ", "bold red"), visible(warning))
    for question, answer in (
        ("Did it learn?", verdict.learned),
        ("Where does it fail?", verdict.failures),
        ("Is the reward hacked?", verdict.reward_hacking),
    ):
        yield Text.assemble((f"{question} ", "bold"), visible(answer))
    for reason in verdict.reasons:
        yield Text(f"  - {visible(reason)}")
    yield Text(visible(record_summary(run)), style="dim")
    yield _findings_table(run.findings)
    yield from map(_rich, tables(run))
    if run.change is not None:
        yield Text("\n".join(run.change.lines()))
    yield Text(usage_summary(run.usage))


def _findings_table(findings: Sequence[Finding]) -> rich_table.Table:
    rows = []
    for finding in findings:
        more = f"\n{finding.threshold}\nMeasured: {finding.reliability}" if finding.seen else ""
        rows.append([finding.title, finding.confidence, finding.evidence + more])
    headings = ("detector", "confidence", "evidence, threshold and how often it is right")
    return _rich(Table("Detectors, most certain first", headings, rows, words=True))


def _rich(table: Table) -> rich_table.Table:
    found = rich_table.Table(
        title=visible(table.title),
        title_justify="left",
        title_style="bold",
        caption=table.note or None,
        caption_justify="left",
    )
    for place, heading in enumerate(table.headings):
        words = table.words and place == len(table.headings) - 1
        found.add_column(
            heading,
            justify="left" if words or place == 0 else "right",
            ratio=1 if words else None,
            max_width=24 if table.words and not words else None,
            overflow="fold",
        )
    for row in table.rows[: table.most]:
        found.add_row(*map(_cell, row))
    return found


def _cell(text: str) -> Text:
    """A cell; rich would read a plain string as markup."""
    if isinstance(text, Confidence):
        return Text(text, style=_STYLES[text])
    first, _, rest = visible(text).partition("\n")
    return Text.assemble(first, (f"\n{rest}" if rest else "", "dim"))


# Sentences.


def warnings_of(run: RunAnalysis) -> list[str]:
    """What has to be known first: damaged records, and what keeps the run from learning."""
    warnings = [f"the records are damaged, and the rest was read: {damage}." for damage in run.damage]
    stall = run.verdict.stall
    if stall is not None:
        claim = "this run cannot learn" if stall.dead else "this run hardly learns"
        warnings.append(f"{claim}. {stall.message[0].upper()}{stall.message[1:]}")
    return warnings


def record_summary(run: RunAnalysis) -> str:
    """What the numbers are based on."""
    words = [f"{run.steps:,} steps, {run.episodes:,} episodes on record."]
    if run.recorded_share is not None and run.recorded_share < 0.99:
        share = f"{100 * run.recorded_share:.0f}%"
        words.append(f"That is {share} of those played; what is not logged is computed from these.")
    if run.faults:
        words.append(f"{run.faults:,} more ended with a fault or without a score, and are in no average.")
    if run.broken_lines:
        words.append(f"Unreadable lines of metrics.jsonl: {run.broken_lines}.")
    return " ".join(words)


def usage_summary(usage: Mapping[str, float]) -> str:
    """Tokens in a sentence, and what the run took in another."""
    parts = [
        f"{usage[name]:,.0f} {what}"
        for name, what in (
            ("sampled", "sampled in training"),
            ("per_episode", "an episode"),
            ("read", "read"),
            ("evaluated", "sampled in evaluations"),
        )
        if usage.get(name)
    ]
    tokens = f"Tokens: {', '.join(parts) or 'none on record'}."
    if "seconds" not in usage:
        return tokens
    spent = [duration(usage["seconds"]), f"{usage['cpu_seconds']:,.0f} CPU-seconds"]
    spent += [f"{usage['gpu_seconds']:,.0f} GPU-seconds"] if usage["gpu_seconds"] else []
    spent += [f"price {short(usage['price'])}"] if "price" in usage else []
    return f"{tokens} Cost: {', '.join(spent)}."


# The page.

_MAIN = {
    "reward": ("Reward", "mean of the sampled episodes"),
    "success": ("Success", "share of the sampled episodes"),
    "eval_success": ("Held-out success", "share of the evaluated episodes"),
    "kl": ("KL", "nats a token"),
    "entropy": ("Entropy", "nats a token"),
    "loss": ("Loss", "minimized"),
    "invalid_actions": ("Invalid actions", "share of the replies"),
    "turns": ("Turns", "replies an episode"),
    "tokens_per_second": ("Speed", "tokens a second"),
}
_MORE = {
    "reply_length": ("Reply length", "characters a reply"),
    "cut_off": ("Cut off", "share of the episodes that a limit ended"),
    "repeated_calls": ("Repeated calls", "share of the turns"),
    "repeated_words": ("Repeated words", "share of three-word sequences in a reply"),
    "script_share": ("Same replies", "share of the groups with the most common replies"),
    "frac_reward_zero_std": ("Flat groups", "share of groups with equal rewards"),
    "reward_std": ("Spread within groups", "standard deviation of the reward"),
    "independent_reward": ("The environment's own reward", "if a judge gives the reward"),
}
_MOST_TERMS = 8


def main_charts(run: RunAnalysis) -> list[Chart]:
    """Charts of the reward, success, and what the optimizer logs."""
    return _drawn(run, _MAIN)


def more_charts(run: RunAnalysis) -> list[Chart]:
    """Charts of judges' scores, of reward terms and of what was computed from the records."""
    names = [curve.name for curve in run.curves]
    judges = {
        name: (f"Judge {name.removeprefix(JUDGE)}", "mean score") for name in names if name.startswith(JUDGE)
    }
    terms = [name for name in names if name.startswith(TERM)][:_MOST_TERMS]
    titles = {name: (name.removeprefix(TERM).replace("_", " "), "reward term") for name in terms}
    return _drawn(run, {**judges, **titles, **_MORE})


def _drawn(run: RunAnalysis, titles: Mapping[str, tuple[str, str]]) -> list[Chart]:
    """The run's curves of these names, each with its title and note."""
    curves = {curve.name: curve for curve in run.curves}
    charts = [
        line_chart(title, note, curves[name].steps, curves[name].values)
        for name, (title, note) in titles.items()
        if name in curves
    ]
    return [chart for chart in charts if chart is not None]


def render_page(template: str, **values: Any) -> str:
    """Render a page template; text is escaped, and the page's policy allows no script and no request."""
    loader = PackageLoader("art_trainer.analysis")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(
        percent=percent,
        number=number,
        usage=usage_summary,
        ticked=_ticked,
        drawing=Markup,
        record=record_summary,
        warnings=warnings_of,
        tables=tables,
    )
    style, _, _ = loader.get_source(environment, "report.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template(template).render(style=Markup(style), style_hash=digest, **values)


def _ticked(text: str) -> Markup:
    """Escape text and set what is between backticks as code."""
    parts = visible(text).split("`")
    if len(parts) % 2 == 0:  # an unmatched backtick is part of a name
        return Markup.escape(visible(text))
    shown = [Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts)]
    return Markup("").join(shown)
