"""An analysis as a page that opens offline; foreign text is escaped, and no script may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from art_trainer.analysis.collecting import TERM
from art_trainer.analysis.results import Analysis, RunAnalysis
from art_trainer.analysis.tables import change_lines, record_words, usage_words
from art_trainer.charts import Chart, line_chart, short
from art_trainer.display import number, percent, visible

_MAIN = {
    "reward": ("Reward", "mean of the sampled episodes"),
    "success": ("Success", "share of the sampled episodes"),
    "eval_success": ("Held-out success", "share of the evaluated episodes"),
    "entropy": ("Entropy", "nats a token"),
    "invalid_actions": ("Invalid actions", "share of the replies"),
    "turns": ("Turns", "replies an episode"),
}
"""Curves that a run's report shows anyway."""
_CURVES = {
    "reply_length": ("Reply length", "characters a reply"),
    "cut_off": ("Cut off", "share of the episodes that a limit ended"),
    "repeated_calls": ("Repeated calls", "share of the turns"),
    "repeated_words": ("Repeated words", "share of three-word sequences in a reply"),
    "script_share": ("Same script", "share of the groups with the most common replies"),
    "frac_reward_zero_std": ("Flat groups", "share of groups that all earn the same"),
    "reward_std": ("Spread within groups", "standard deviation of the reward"),
    "independent_reward": ("The environment's own reward", "where a judge pays"),
}
_MOST_TERMS = 8


def analysis_page(analysis: Analysis) -> str:
    """The HTML of a page that shows an analysis of one or more runs."""
    runs = [(run, _drawn(run, _MAIN) + analysis_charts(run)) for run in analysis.runs]
    return render_page("analysis.html.j2", runs=runs, comparisons=analysis.comparisons)


def render_page(template: str, **values: Any) -> str:
    """Fill one of the page templates; they share a style, and a policy that lets nothing else in."""
    environment = Environment(
        loader=PackageLoader("art_trainer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(
        percent=percent,
        number=number,
        short=short,
        change_lines=change_lines,
        usage=usage_words,
        ticked=_ticked,
        record=lambda run: " ".join(record_words(run)),
    )
    style = environment.loader.get_source(environment, "report.css")[0] if environment.loader else ""
    return environment.get_template(template).render(
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        **values,
    )


def _ticked(text: str) -> Markup:
    """Text whose words between backticks are set as code; all of it is escaped."""
    parts = visible(text).split("`")
    if len(parts) % 2 == 0:  # one stands alone: it is part of a name
        return Markup.escape(visible(text))
    shown = [Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts)]
    return Markup("").join(shown)


def analysis_charts(run: RunAnalysis) -> list[Chart]:
    """The reward's parts and the judges' scores over the steps, then what the records tell of habits."""
    terms = [curve.name for curve in run.curves if curve.name.startswith(TERM)][:_MOST_TERMS]
    parts = {name: (name.removeprefix(TERM).replace("_", " "), "part of the reward") for name in terms}
    judges = [
        line_chart(f"Judge {judge.judge}", "mean score", judge.curve.steps, judge.curve.values)
        for judge in run.judges
    ]
    return [chart for chart in judges if chart is not None] + _drawn(run, parts) + _drawn(run, _CURVES)


def _drawn(run: RunAnalysis, titles: Mapping[str, tuple[str, str]]) -> list[Chart]:
    """The run's curves of these names, each with its title and note."""
    curves = {curve.name: curve for curve in run.curves}
    charts = [
        line_chart(title, note, curves[name].steps, curves[name].values)
        for name, (title, note) in titles.items()
        if name in curves
    ]
    return [chart for chart in charts if chart is not None]
