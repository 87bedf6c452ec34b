"""An analysis in the terminal: the verdict, then tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from art_trainer.analysis.results import (
    Analysis,
    Confidence,
    EvaluationChange,
    RunAnalysis,
    Sign,
    TaskRates,
    ToolShare,
    Usage,
)
from art_trainer.charts import short
from art_trainer.display import percent, points, visible

STYLES = {
    Confidence.STRONG: "bold red",
    Confidence.LIKELY: "red",
    Confidence.POSSIBLE: "yellow",
    Confidence.NONE: "green",
    Confidence.UNKNOWN: "dim",
}
_SHOWN_ERRORS = 6
_SHOWN_TERMS = 6
_SHOWN_TURNS = 4


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Print what an analysis found, run by run, then the runs held against each other."""
    for run in analysis.runs:
        console.rule(Text(f"{run.path}: {run.model or 'a model'} on {run.env or 'an environment'}"))
        for part in _parts(run):
            console.print(part, soft_wrap=isinstance(part, Text))
    for change in analysis.comparisons:
        console.rule(Text(f"{change.second} beside {change.first}"))
        console.print(Text("\n".join(change_lines(change))), soft_wrap=True)


def _parts(run: RunAnalysis) -> Iterator[RenderableType]:
    verdict = run.verdict
    for question, answer in (
        ("Did it learn?", verdict.learned),
        ("Where does it fail?", verdict.fails),
        ("Does it cheat?", verdict.cheats),
    ):
        yield Text.assemble((f"{question} ", "bold"), visible(answer))
    for reason in verdict.reasons:
        yield Text(f"  - {visible(reason)}")
    yield Text(visible(" ".join(record_words(run))), style="dim")
    yield signs_table(run.signs)
    if run.windows:
        yield _windows_table(run)
        yield _terms_table(run)
    if run.gains:
        yield _gains_table(run)
    if run.tools:
        yield _tools_table(run.tools)
    if run.errors:
        yield _errors_table(run)
    yield from map(_tasks_table, run.tasks)
    if run.change is not None:
        yield Text("\n".join(change_lines(run.change)))
    yield Text(usage_words(run.usage))


def record_words(run: RunAnalysis) -> list[str]:
    """What the numbers rest on, in sentences."""
    words = [f"{run.steps:,} steps, {run.episodes:,} episodes on record."]
    if run.recorded_share is not None and run.recorded_share < 0.99:
        words.append(
            f"That is {100 * run.recorded_share:.0f}% of those played: what the log does not tell of all "
            "comes from these."
        )
    if run.faults:
        words.append(f"Faults ended or left unscored {run.faults:,} more, which are in no average.")
    if run.broken_lines:
        words.append(f"Lines of metrics.jsonl that are not whole: {run.broken_lines}.")
    words += [f"Records are damaged, and were read up to there: {damage}." for damage in run.damage]
    return words


def signs_table(signs: tuple[Sign, ...]) -> Table:
    """Each sign with its word, its evidence and the threshold that makes the word."""
    table = _table("Signs, the surest first")
    table.add_column("sign", max_width=24)
    table.add_column("confidence", no_wrap=True)
    table.add_column("evidence, and what makes it which", ratio=1)
    for sign in signs:
        evidence = Text(visible(sign.evidence))
        if sign.confidence.rank >= Confidence.POSSIBLE.rank:
            evidence = Text.assemble(evidence, "\n", (sign.threshold, "dim"))
        table.add_row(sign.title, Text(sign.confidence, style=STYLES[sign.confidence]), evidence)
    return table


def _windows_table(run: RunAnalysis) -> Table:
    table = _table("Training by stretches of steps")
    table.add_column("steps", no_wrap=True)
    for heading in ("count", "success", "reward", "turns", "reply", "invalid", "cut off"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in run.windows:
        table.add_row(
            row.steps,
            str(row.episodes),
            percent(row.success),
            short(row.reward),
            f"{row.turns:.1f}",
            f"{row.reply_length:.0f}",
            f"{100 * row.invalid:.1f}%",
            f"{100 * row.cut_off:.1f}%",
        )
    table.caption = (
        f"Overall success: {percent(run.success)}; 95% intervals. Counts are of episodes, replies in "
        "characters."
    )
    return table


def _terms_table(run: RunAnalysis) -> Table:
    table = _table("Reward by part")
    terms = list(dict.fromkeys([gain.name for gain in run.gains[1:]] + list(run.windows[0].terms)))
    table.add_column("steps", no_wrap=True)
    table.add_column("reward", justify="right")
    for term in terms[:_SHOWN_TERMS]:
        table.add_column(_words(term), justify="right", overflow="fold")
    for row in run.windows:
        parts = (short(row.terms.get(term, 0.0)) for term in terms[:_SHOWN_TERMS])
        table.add_row(row.steps, short(row.reward), *parts)
    return table


def _gains_table(run: RunAnalysis) -> Table:
    table = _table("What brought the reward's change, first third to last third")
    table.add_column("part")
    for heading in ("early", "late", "change", "share", "explained by success"):
        table.add_column(heading, justify="right")
    for gain in run.gains:
        table.add_row(
            _words(gain.name),
            short(gain.early),
            short(gain.late),
            f"{gain.change:+.3g}",
            "–" if gain.share is None else f"{round(100 * gain.share)}%",
            f"{gain.explained:+.3g}",
        )
    return table


def _tools_table(tools: tuple[ToolShare, ...]) -> Table:
    table = _table("Actions by turn: share of the replies (early → late)")
    table.add_column("turn", no_wrap=True)
    table.add_column("actions", ratio=1)
    turns = dict.fromkeys((tool.turn, tool.later) for tool in tools)
    for turn, later in list(turns)[:_SHOWN_TURNS]:
        shares = [
            f"{visible(tool.tool)} {100 * tool.share:.0f}% ({100 * tool.early:.0f} → {100 * tool.late:.0f})"
            for tool in tools
            if tool.turn == turn and tool.share >= 0.005
        ]
        table.add_row(f"{turn}{'+' if later else ''}", Text(", ".join(shares)))
    return table


def _errors_table(run: RunAnalysis) -> Table:
    table = _table(f"Errors ({100 * run.error_share:.1f}% of the replies had no valid call)")
    table.add_column("kind", max_width=20, overflow="fold")
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    table.add_column("message, and the first of them", ratio=1)
    for error in run.errors[:_SHOWN_ERRORS]:
        reply = visible(" ".join(error.example_reply.split()))
        example = Text.assemble(
            visible(error.message), "\n", (f"{visible(error.where)}: {reply[:120]}", "dim")
        )
        table.add_row(
            _words(error.kind.replace("_", " ")), str(error.count), f"{100 * error.share:.0f}%", example
        )
    return table


def _tasks_table(tasks: TaskRates) -> Table:
    table = _table(f"Tasks in {tasks.of}")
    for heading in ("kind of task" if tasks.families else "hardest tasks", "solved", "episodes", "reward"):
        table.add_column(heading, justify="left" if len(table.columns) == 0 else "right")
    for rate in (tasks.families or tasks.hardest)[:10]:
        table.add_row(_words(rate.task_id), f"{100 * rate.rate:.0f}%", str(rate.episodes), short(rate.reward))
    table.caption = (
        f"{tasks.tasks} tasks: {tasks.always} always solved, {tasks.sometimes} sometimes, "
        f"{tasks.never} never."
    )
    if tasks.seen_again is not None:
        table.caption += f" Tasks met again: {points(tasks.seen_again)} from the first time to the last."
    return table


def change_lines(change: EvaluationChange) -> list[str]:
    """What is different between two evaluations, in lines."""
    lines = []
    pair = f"{change.first} → {change.second}"
    if change.success is not None:
        luck = "" if change.success.excludes_zero else ", could be luck"
        lines.append(
            f"{pair}: success {percent(change.first_success)} → {percent(change.second_success)}, "
            f"{points(change.success)}{luck}."
        )
    lines += won_and_lost_lines(change)
    if change.reward is not None:
        lines.append(
            f"{pair}: mean reward {change.reward.value:+.3g} "
            f"({change.reward.low:+.3g} to {change.reward.high:+.3g})."
        )
    return [*lines, *([visible(change.note)] if change.note else [])]


def won_and_lost_lines(change: EvaluationChange) -> list[str]:
    """Which starts were won and which lost, in lines; none where the two did not meet the same ones."""
    if not change.paired or change.success is None:
        return []
    test = "" if change.p_value is None else f" (exact McNemar test: p = {change.p_value:.2g})"
    lines = [
        f"Starts won {change.won}, lost {change.lost}, solved by both {change.both}, by neither "
        f"{change.neither}{test}."
    ]
    for name, tasks, count in (
        ("Won", change.won_tasks, change.won),
        ("Lost", change.lost_tasks, change.lost),
    ):
        if tasks:
            more = f" and {count - len(tasks)} more" if count > len(tasks) else ""
            lines.append(visible(f"{name}: {', '.join(tasks)}{more}."))
    return lines


def usage_words(usage: Usage) -> str:
    """Tokens and cost in a sentence."""
    parts = []
    if usage.sampled is not None:
        each = "" if usage.per_episode is None else f" ({usage.per_episode:.0f} an episode)"
        parts.append(f"{usage.sampled:,.0f} sampled in training{each}")
    if usage.read is not None:
        parts.append(f"{usage.read:,.0f} read")
    if usage.evaluated:
        parts.append(f"{usage.evaluated:,.0f} sampled in evaluations")
    words = f"Tokens: {', '.join(parts) or 'none on record'}."
    return words if usage.cost is None else f"{words} Cost at the prices given: {usage.cost:.4g}."


def _words(text: str) -> Text:
    """Foreign words: a cell that is a plain string would be read as markup."""
    return Text(visible(text))


def _table(title: str) -> Table:
    return Table(title=visible(title), title_justify="left", title_style="bold", caption_justify="left")
