"""``art-trainer episodes``: read the recorded episodes of a run, with keys in a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from art_gym.terminal import visible
from art_trainer.cli.live_view import is_live, line, transcript
from art_trainer.cli.options import Count, RunDir, Whole, command
from art_trainer.errors import ConfigError
from art_trainer.tracking.episode_store import iter_episodes, step_frames

_HELP = "q quit  n/p episode  N/P step  w/b worst/best  ↑/↓ space/u scroll"
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_SAME = {"C": "n", "D": "p", "B": "j", "A": "k", "6~": " ", "5~": "u"}  # ends of what arrows and pages send


@command(
    "episodes",
    "`art-trainer episodes runs/Email-v0-art-tiny-1` reads with keys, the newest step first.",
    "`art-trainer episodes runs/Email-v0-art-tiny-1 --step 20 --worst | less` prints one episode.",
)
def episodes(
    run: RunDir,
    *,
    step: Count | None = None,
    episode: Whole | None = None,
    worst: bool = False,
    best: bool = False,
) -> None:
    """Read the episodes of training: what was shown, said and paid.

    Keys in a terminal: n and p, or the arrows right and left, for the next and the previous episode of a
    step, N and P for steps, w and b for a step's worst and best episode, arrows up and down, space and u
    to scroll, q to quit. Elsewhere the chosen episodes are printed.

    Flags:
        step: Training step. [default: the newest]
        episode: Number in the step, from 0. [default: all; in a terminal the first]
        worst: The episode with the lowest reward.
        best: The episode with the highest reward.
    """
    if (episode is not None) + worst + best > 1:
        raise ConfigError("--episode, --worst and --best each choose an episode: give one of them")
    reader, console = EpisodeReader(run, step), Console()
    if episode is not None:
        reader.go_to(episode)
    elif worst or best:
        reader.press("w" if worst else "b")
    if is_live(console) and sys.stdin.isatty():
        read_with_keys(reader, console)
        return
    one = worst or best or episode is not None
    for place in [reader.place] if one else range(len(reader.episodes)):
        reader.go_to(place)
        for text in (Text(reader.title, style="bold"), *transcript(reader.episode), Text()):
            console.print(text, soft_wrap=True)


class EpisodeReader:
    """A place in a run's recorded episodes; ``place`` counts from 0, as in the dashboard's addresses."""

    def __init__(self, run: Path, step: int | None) -> None:
        self._run = run
        steps = self._steps()
        if not steps:
            raise ConfigError(f"{run} has no recorded episodes")
        if step is not None and step not in steps:
            known = f"{steps[0]} to {steps[-1]}{'' if len(steps) > steps[-1] - steps[0] else ', not all'}"
            raise ConfigError(f"{run} has no episodes of step {step}, but of steps {known}: change --step")
        self._go_to_step(steps[-1] if step is None else step)

    def _steps(self) -> list[int]:
        return [frame.header["step"] for frame in step_frames(self._run) if frame.header["episodes"]]

    def _go_to_step(self, step: int) -> None:
        self.step, self.episodes = step, [found.episode for found in iter_episodes(self._run, [step])]
        self.go_to(0)

    def go_to(self, place: int) -> None:
        """Go to an episode of the step; a ConfigError if it is not there."""
        if place >= len(self.episodes):
            known = f"0 to {len(self.episodes) - 1}"
            raise ConfigError(f"step {self.step} has no episode {place}, but {known}: change --episode")
        self.place, self.episode, self.scrolled = place, self.episodes[place], 0
        self._wrapped: dict[int, list[Text]] = {}  # by width: to wrap a long episode takes time

    @property
    def title(self) -> str:
        """Which episode it is at."""
        where = f"step {self.step}, episode {self.place} of 0 to {len(self.episodes) - 1}"
        return visible(f"{where}, task {self.episode.task_id}, {self.episode.ending}").replace("\n", " ")

    def press(self, key: str, rows: int = 0) -> None:
        """Do what a key means, with so many rows shown at once; beyond an end, and for others, nothing."""
        if key in ("n", "p"):
            self.go_to(max(0, min(self.place + (1 if key == "n" else -1), len(self.episodes) - 1)))
        elif key in ("N", "P"):
            steps = self._steps()  # the run may have gone on
            if others := [one for one in steps if (one > self.step if key == "N" else one < self.step)]:
                self._go_to_step(others[0 if key == "N" else -1])
        elif key in ("w", "b"):
            choose = min if key == "w" else max
            self.go_to(choose(range(len(self.episodes)), key=lambda place: self.episodes[place].reward))
        else:
            self.scrolled += {"j": 1, "k": -1, " ": rows, "u": -rows}.get(key, 0)

    def page(self, console: Console) -> RenderableType:
        """The rows of the episode that are in view, below the title and above the keys."""
        rows, width = max(1, console.height - 2), console.width
        if width not in self._wrapped:
            body = Text("\n").join(transcript(self.episode))
            self._wrapped[width] = list(body.wrap(console, width, overflow="fold", tab_size=4))
        lines = self._wrapped[width]
        self.scrolled = max(0, min(self.scrolled, len(lines) - rows))
        seen = lines[self.scrolled : self.scrolled + rows]
        below = f"{_HELP}  {self.scrolled + len(seen)}/{len(lines)}"
        return Group(line((self.title, "bold")), *seen, line((below, "dim")))


def read_with_keys(reader: EpisodeReader, console: Console) -> None:
    """Show episodes on the whole terminal, and go where keys say, until q or the end of the input."""
    with console.screen() as screen, _pressed_keys() as pressed:
        while True:
            screen.update(reader.page(console))
            for key in pressed() or ["q"]:
                if key in ("q", "\x04"):  # Ctrl-D
                    return
                reader.press(_SAME.get(key[2:], key), max(1, console.height - 2))


@contextmanager
def _pressed_keys() -> Iterator[Callable[[], list[str]]]:
    """Within, keys are not echoed and need no Enter; gives what waits for keys and returns them."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSANOW)  # for long: no key is lost while a page is drawn
        yield lambda: _KEY.findall(os.read(terminal, 256).decode(errors="replace"))
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
