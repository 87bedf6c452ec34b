"""The frames of a run's recorded episodes, their headers alone, followed while the file grows."""

from __future__ import annotations

from pathlib import Path

from art_trainer.dashboard.old_steps import OldStep, old_steps
from art_trainer.errors import RecordError
from art_trainer.records.frames import Frame, walk
from art_trainer.records.writer import FILE, STEP

RecordedStep = Frame | OldStep
"""Where a step's episodes lie: both give ``header``, ``lines()`` and ``named()``."""


class GrowingFrames:
    """Knows where each step's episodes lie.

    A resumed run cuts off the steps that it does again and writes others there: what is no longer as it was
    is forgotten. Steps in files of version 0 come first; those that were done again later are left out.

    Args:
        folder: The run's folder.

    Attributes:
        steps: What holds episodes, in order.
        fault: What is wrong with the file behind them, in words.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self.steps: list[RecordedStep] = []
        self.fault: str | None = None
        self._folder = folder
        self._old: list[OldStep] | None = None
        self._old_shown = 0
        self._frames: list[Frame] = []

    def update(self) -> int:
        """Take up what is new; return how many of the steps known before are still there.

        Raises:
            OSError: Where a file cannot be read.
        """
        kept = len(self._frames) if self._last_is_there() else self._forget_changed()
        end = self._frames[-1].end if self._frames else 0
        self.fault = None
        try:
            for frame in walk(self.file, end):
                if frame.header.get("kind") == STEP:
                    self._frames.append(frame)
        except RecordError as error:
            self.fault = str(error)
        before, shown = self._old_shown, self._old_before_frames()
        self._old_shown = len(shown)
        self.steps = [*shown, *self._frames]
        return before + kept if before == len(shown) else min(before, len(shown))

    def _old_before_frames(self) -> list[OldStep]:
        if self._old is None:
            self._old = old_steps(self._folder)
        if not self._frames:
            return self._old
        first = self._frames[0].header["step"]
        return [old for old in self._old if old.header["step"] < first]

    def _last_is_there(self) -> bool:
        if not self._frames:
            return True
        last = self._frames[-1]
        try:
            return next(walk(self.file, last.offset), None) == last
        except RecordError:
            return False

    def _forget_changed(self) -> int:
        kept = 0
        try:
            now = (frame for frame in walk(self.file) if frame.header.get("kind") == STEP)
            for known, found in zip(self._frames, now, strict=False):
                if known != found:
                    break
                kept += 1
        except RecordError:
            pass  # said when the frames behind are walked
        del self._frames[kept:]
        return kept
