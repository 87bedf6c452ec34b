"""What ``art-trainer judge eval`` shows: two tables, what misled each judge, and a plot."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from art_trainer.judge_evaluation import JudgeEvaluation
from art_trainer.plots import COLOURS, Panel, page
from art_trainer.statistics import Interval

_MISLED = 3  # pairs of players shown a judge
_DASH = "–"


def print_judges(evaluations: Sequence[JudgeEvaluation], dropped: int, console: Console) -> None:
    """Print how well each judge orders, how steady it is and what it took, and what misled it.

    Args:
        evaluations: One a judge, of the same groups.
        dropped: Groups that were judged by nobody, because a fault ended one of their attempts.
        console: Where to.
    """
    console.print(_order_table(evaluations, dropped))
    console.print(_steadiness_table(evaluations))
    for evaluation in evaluations:
        for better, above, count in evaluation.misled[:_MISLED]:
            console.print(
                f"{evaluation.judge} ranks {above} above a better {better} in {count} pairs",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _order_table(evaluations: Sequence[JudgeEvaluation], dropped: int) -> Table:
    first = evaluations[0]
    judged = len(first.groups) + sum(first.failures.values())
    table = _table(f"{judged} groups, 95% intervals")
    table.caption = (
        "tau: Kendall's tau-b with the true reward. success: how often a success is scored above a failure, "
        "0.5 by chance. top-1: the judge's best attempt is among the truly best. chance: a tossed one is."
    )
    if dropped:
        table.caption += f" Left out, because a fault ended an attempt: {dropped}."
    headings = ("tau", "success", "top-1", "chance", "failed")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for evaluation in evaluations:
        table.add_row(
            evaluation.judge,
            _with_ends(evaluation.tau),
            _with_ends(evaluation.success_above),
            _with_ends(evaluation.top),
            _figure(evaluation.chance),
            _failed(evaluation),
        )
    return table


def _steadiness_table(evaluations: Sequence[JudgeEvaluation]) -> Table:
    table = _table(f"Asked again and in other orders ({len(evaluations[0].repeats)} groups)")
    table.caption = (
        "place: change of a score from the first place shown to the last. spread: its standard deviation "
        "over orders. again: mean difference of two answers to one question, and tau between them. Requests, "
        "tokens and cost are of a group."
    )
    headings = ("place", "spread", "again", "tau again", "requests", "tokens", "cost")
    for heading in headings:
        table.add_column(heading, justify="right")
    for evaluation in evaluations:
        table.add_row(
            evaluation.judge,
            _figure(evaluation.order_slope, signed=True),
            _figure(evaluation.order_spread),
            _figure(evaluation.repeat_difference),
            _figure(evaluation.repeat_tau),
            *_usage(evaluation),
        )
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="", caption_justify="left")
    table.add_column("judge", overflow="fold", min_width=9)
    return table


def _failed(evaluation: JudgeEvaluation) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in evaluation.failures.items()) or "0"


def _usage(evaluation: JudgeEvaluation) -> tuple[str, str, str]:
    used = evaluation.usage
    if used is None or not used.groups:
        return (_DASH,) * 3
    tokens = used.prompt_tokens + used.completion_tokens
    cost = f"{used.cost / used.groups:.3g}" if used.cost else _DASH
    return f"{used.requests / used.groups:.1f}", f"{tokens / used.groups:.0f}", cost


def _with_ends(interval: Interval | None) -> Text:
    if interval is None:
        return Text(_DASH)
    return Text.assemble(f"{interval.value:.2f}", (f"\n{interval.low:.2f} to {interval.high:.2f}", "dim"))


def _figure(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return _DASH
    return f"{value:+.3f}" if signed and value else f"{value:.3f}"


def judge_plot(evaluations: Sequence[JudgeEvaluation]) -> str:
    """An SVG: each judge's scores against the true rewards, and Kendall's tau of all judges.

    Args:
        evaluations: One a judge; at least one.
    """
    panels = [_scatter(number, evaluation) for number, evaluation in enumerate(evaluations)]
    return page([*panels, _taus(evaluations)])


def _scatter(number: int, evaluation: JudgeEvaluation) -> Panel:
    rewards = [reward for group in evaluation.groups for reward in group.rewards] or [0.0, 1.0]
    scores = [score for group in evaluation.groups for score in group.scores]
    x_range = min(rewards), max(rewards)
    panel = Panel(evaluation.judge, "true reward", "judge's score", x_range, (0.0, 1.0))
    if scores:
        panel.points(rewards, scores, COLOURS[number % len(COLOURS)], opacity=0.3)
    return panel


def _taus(evaluations: Sequence[JudgeEvaluation]) -> Panel:
    known = [(n, e.judge, e.tau) for n, e in enumerate(evaluations) if e.tau is not None]
    low = min([0.0, *(tau.low for _, _, tau in known if tau.low == tau.low)])
    panel = Panel(
        "Kendall's tau-b with the true reward", "", "tau", (0, len(evaluations)), (low, 1.0), x_numbers=False
    )
    for number, name, tau in known:
        colour = COLOURS[number % len(COLOURS)]
        panel.points([number + 0.2], [tau.value], colour)
        if tau.low == tau.low:
            panel.interval(number + 0.2, tau.low, tau.high, colour)
        panel.label(number + 0.2, tau.value, name, colour)
    return panel
