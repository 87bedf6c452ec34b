"""Runs and episodes in a terminal: a view of progress, curves, newest episode, warnings; or plain lines."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from art_gym.cli.play import outcome_lines, reply_line, result_line
from art_gym.terminal import visible
from art_trainer.formatting import duration, short, sparkline
from art_trainer.tracking.health import RunWarning
from art_trainer.types import Episode

_log = logging.getLogger(__name__)
SHOWN = {
    "reward": "reward", "success": "success", "kl": "KL", "entropy": "entropy", "invalid_actions": "invalid",
    "tokens_per_second": "tokens/s",
}  # fmt: skip
"""The metrics that are shown, and their labels; the first two also as curves."""
_BAR, _CURVE, _LEAST_ROWS, _WARNINGS = 30, 60, 3, 3


@dataclass(slots=True)
class RunView:
    """What the view of a run shows; ``None`` is unknown."""

    step: int = 0  # the last that is done
    steps: int | None = None  # of the whole run
    played: float = 0.0  # share of the next step's episodes, in [0, 1]
    seconds_left: float | None = None
    title: str = ""
    series: dict[str, list[float]] = field(default_factory=dict)  # finite values by step, of SHOWN
    episode: Episode | None = None  # the newest
    warnings: list[str] = field(default_factory=list)  # the newest is last

    @property
    def pace(self) -> str:
        """How many steps are done and how long the rest will take."""
        left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return f"step {self.step}/{self.steps or '?'}{left}"


def run_view(view: RunView, console: Console) -> RenderableType:
    """Show a run so that it fits into the console; what does not fit is left out from the bottom.

    Nothing in a text of a model, an environment or a warning is markup or an escape sequence here.
    """
    width, height = console.size
    lines = [line((visible(view.title).replace("\n", " "), "bold"))] if view.title else []
    room = max(0, min(_BAR, width - len(view.pace) - 2)) if view.steps else 0
    full = round(room * min(1.0, (view.step + view.played) / (view.steps or 1)))
    bar = ("━" * full, "green"), ("─" * (room - full), "dim")
    lines.append(line(*bar, "  " if room else "", view.pace))
    if latest := {name: values[-1] for name, values in view.series.items() if values}:
        lines.append(line(_numbers(latest)))
    lines += [_curve(name, values, width) for name in list(SHOWN)[:2] if (values := view.series.get(name))]
    for message in view.warnings[: -_WARNINGS - 1 : -1]:
        text = Text(visible(f"! {message}")[: 2 * width], "yellow")
        lines += text.wrap(console, width, overflow="fold")[:2]
    rows = height - len(lines) - 2
    if view.episode is None or rows < _LEAST_ROWS:
        return Group(*lines[:height])
    return Group(*lines, _pane(view.episode, console, rows))


def line(*parts: str | tuple[str, str]) -> Text:
    """One row; what does not fit is cut off."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _numbers(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{label} {short(metrics[name])}" for name, label in SHOWN.items() if name in metrics)


def _curve(name: str, values: Sequence[float], width: int) -> Text:
    ends = f"  {short(values[0])} → {short(values[-1])}"
    curve = sparkline(values, max(1, min(_CURVE, width - 8 - len(ends))))
    return line((f"{name:<8}", "dim"), (curve, "green"), ends)


def _pane(episode: Episode, console: Console, rows: int) -> Panel:
    """The newest part of an episode below the end of its first observation."""
    start, *rest = transcript(episode)
    said = _last_rows(rest, console, rows - max(1, rows // 4))
    seen = _last_rows([start], console, rows - len(said))
    title = Text(visible(f"last episode, task {episode.task_id}, reward {episode.reward:+.3f}"))
    return Panel(Text("\n").join([*seen, *said]), title=title, title_align="left", border_style="dim")


def _last_rows(texts: Sequence[Text], console: Console, most: int) -> list[Text]:
    """The last rows that texts fill in a pane, at most so many."""
    width, rows = max(1, console.width - 4), list[Text]()
    for text in reversed(texts):
        if len(rows) < most:
            rows[:0] = text[-width * (most + 1) :].wrap(console, width, overflow="fold", tab_size=4)
    return rows[-most:]


def transcript(episode: Episode) -> list[Text]:
    """The first observation, then what was said, shown and paid in each turn, and how the episode ended."""
    lines = [Text(visible(episode.observation))]
    for turn in episode.turns:
        lines += [reply_line(turn.reply), *outcome_lines(turn.observation, turn.reward, turn.score_terms)]
    lines.append(result_line(episode.success, episode.reward, len(episode.turns), episode.score_terms))
    for name, judged in episode.judgements.items():
        lines.append(Text(visible(f"{name}: {judged.score:.2f} {judged.explanation}"), style="dim"))
    return [*lines, *fault_lines(episode)]


def fault_lines(episode: Episode) -> list[Text]:
    """What ended an episode or left it unscored, if a fault did."""
    fault = f"({episode.unjudged or episode.ending}): {episode.error or 'no message'}"
    return [Text(visible(f"A fault ended the episode {fault}"), style="bold")] if episode.failed else []


def is_live(console: Console) -> bool:
    """Whether what the console shows can be redrawn: it is a terminal, and not quiet."""
    # Asked of the file too: rich takes FORCE_COLOR, which notebooks set, for a terminal.
    return console.is_interactive and console.file.isatty() and not console.quiet


class TrainingProgress:
    """A trainer's callback that shows how far training is, its numbers, newest episode and warnings.

    A terminal gets a live view, a log or pipe about 25 lines in all, a quiet console nothing.
    """

    def __init__(self, console: Console, episodes_per_step: int) -> None:
        self._console, self._live = console, is_live(console)
        self._per_step, self._played = episodes_per_step, 0
        self._view = RunView()

    @contextmanager
    def running(self, total: int, done: int) -> Iterator[None]:
        """Show the progress of a run of ``total`` steps within the context; ``done`` were before it."""
        self._view.step, self._view.steps, self._first = done, total, done
        self._began = self._stepped = time.monotonic()
        frames = Live(get_renderable=self._frame, console=self._console, vertical_overflow="crop")
        with frames if self._live else nullcontext():
            try:
                yield
            finally:
                self._view.episode = None  # the last frame, which stays, has the numbers alone

    def _frame(self) -> RenderableType:
        self._view.played = min(self._played / self._per_step, 1.0) if self._per_step else 0.0
        self._estimate(since=time.monotonic() - self._stepped)
        return run_view(self._view, self._console)

    def _estimate(self, since: float = 0.0) -> None:
        """Estimate the time left, so many seconds after the newest step, at the mean pace so far."""
        view = self._view
        if (done := view.step - self._first) and view.steps is not None:
            pace = (self._stepped - self._began) / done
            view.seconds_left = max(0.0, pace * (view.steps - view.step) - since)

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        view = self._view
        view.step, self._played = int(metrics.get("step", view.step + 1)), 0
        self._stepped = time.monotonic()
        for name in SHOWN:
            if math.isfinite(value := float(metrics.get(name, math.nan))):
                view.series.setdefault(name, []).append(value)
        self._estimate()
        every = max(1, (view.steps or 0) // 25)
        if not self._live and (view.step in (self._first + 1, view.steps) or view.step % every == 0):
            self._console.print(f"{view.pace}  {_numbers(metrics)}", highlight=False, soft_wrap=True)

    def on_episode(self, episode: Episode) -> None:
        """A training episode ended."""
        self._played += 1
        self._view.episode = episode

    def on_warning(self, warning: RunWarning) -> None:
        """A number is beyond its threshold."""
        self._view.warnings.append(warning.message)
        _log.warning("warning: %s", warning.message)
