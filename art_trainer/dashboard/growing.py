"""A file of JSON lines that another process appends to, read as it grows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_TAIL = 256
"""Bytes before the reading place that must still be there; else the file is another one."""
_READ = 1 << 22
"""Most bytes of one read: a long file is taken in several."""


class GrowingLines:
    """Gives the records that are new since the last time, whole lines alone.

    A resumed run writes its files anew, without what it does again. That is noticed, and all records are
    given once more.

    Args:
        file: The file; it need not exist yet.

    Attributes:
        generation: How often the file began anew; what was read in an earlier one is void.
        broken: Lines of this generation that could not be read.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.generation = 0
        self.broken = 0
        self._offset = 0
        self._tail = b""

    def read(self) -> list[dict[str, Any]]:
        """Return new records, at most some megabytes of them; ``generation`` tells whether they begin anew.

        Raises:
            OSError: Where the file cannot be read.
        """
        try:
            stream = self.file.open("rb")
        except FileNotFoundError:
            if self._offset:
                self._begin_anew()
            return []
        with stream:
            if os.fstat(stream.fileno()).st_size == self._offset and not self._offset:
                return []
            stream.seek(self._offset - len(self._tail))
            if stream.read(len(self._tail)) != self._tail:
                self._begin_anew()
                stream.seek(0)
            return self._parsed(stream.read(_READ))

    def _begin_anew(self) -> None:
        self.generation += 1
        self.broken = 0
        self._offset = 0
        self._tail = b""

    def _parsed(self, data: bytes) -> list[dict[str, Any]]:
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == _READ:
            whole = data  # no line of ours is that long
        self._offset += len(whole)
        self._tail = (self._tail + whole)[-_TAIL:]
        records = []
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                records.append(record)
            else:
                self.broken += 1
        return records
