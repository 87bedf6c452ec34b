"""The frames of a run's recorded episodes, their headers alone, followed while the file grows."""

from __future__ import annotations

from pathlib import Path

from art_trainer.errors import RecordError
from art_trainer.records.frames import Frame, walk
from art_trainer.records.writer import FILE, STEP


class GrowingFrames:
    """Knows where each step's episodes lie.

    A resumed run cuts off the steps that it does again and writes others there: what is no longer as it was
    is forgotten.

    Args:
        folder: The run's folder.

    Attributes:
        steps: The frames that hold episodes, in order.
        fault: What is wrong with the file behind them, in words.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self.steps: list[Frame] = []
        self.fault: str | None = None

    def update(self) -> int:
        """Take up what is new; return how many of the frames known before are still there.

        Raises:
            OSError: Where the file cannot be read.
        """
        kept = len(self.steps) if self._last_is_there() else self._forget_changed()
        end = self.steps[-1].end if self.steps else 0
        self.fault = None
        try:
            for frame in walk(self.file, end):
                if frame.header.get("kind") == STEP:
                    self.steps.append(frame)
        except RecordError as error:
            self.fault = str(error)
        return kept

    def _last_is_there(self) -> bool:
        if not self.steps:
            return True
        last = self.steps[-1]
        try:
            return next(walk(self.file, last.offset), None) == last
        except RecordError:
            return False

    def _forget_changed(self) -> int:
        kept = 0
        try:
            now = (frame for frame in walk(self.file) if frame.header.get("kind") == STEP)
            for known, found in zip(self.steps, now, strict=False):
                if known != found:
                    break
                kept += 1
        except RecordError:
            pass  # said when the frames behind are walked
        del self.steps[kept:]
        return kept
