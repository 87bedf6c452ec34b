"""A benchmark of many trainings as cells that run apart, some at a time, and are kept as each one ends."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from art_trainer.run_folder import write_text

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741


class Cells(Generic[C, O]):
    """The cells done so far, in a file where one is named.

    Args:
        file: Written whenever a cell ends; what is in it is not run again. ``None``: nothing is kept.
        plan: What all cells share, JSON-able; a file of another plan is refused.
        cell_type: A frozen dataclass of JSON-able fields: what makes one cell differ from another.
        outcome_type: A dataclass of JSON-able fields: what a cell came to.
    """

    def __init__(
        self, file: Path | None, plan: Mapping[str, Any], cell_type: type[C], outcome_type: type[O]
    ) -> None:
        self._file = file
        self._plan = json.loads(json.dumps(plan))
        self.done: dict[C, O] = {}
        if file is not None and file.exists():
            data = json.loads(file.read_text())
            if data["plan"] != self._plan:
                raise SystemExit(f"{file} holds cells of another plan, {data['plan']}: name another file")
            for record in data["cells"]:
                self.done[cell_type(**record["cell"])] = outcome_type(**record["outcome"])

    def run(
        self, cells: Sequence[C], task: Callable[[C], O], at_once: int, words: Callable[[C, O], str]
    ) -> None:
        """Run the cells that are not done, each in a process with one thread.

        Args:
            cells: Those wanted.
            task: Runs one; it and the cells must survive a trip to another process.
            at_once: How many run at the same time.
            words: What is printed as a cell ends.
        """
        waiting = [cell for cell in cells if cell not in self.done]
        if not waiting:
            return
        os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it
        pool = ProcessPoolExecutor(
            at_once, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
        )
        try:
            asked: dict[Future[O], C] = {pool.submit(task, cell): cell for cell in waiting}
            for number, future in enumerate(as_completed(asked), start=1):
                cell, outcome = asked[future], future.result()
                self.done[cell] = outcome
                self._write()
                print(f"[{number}/{len(waiting)}] {words(cell, outcome)}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)

    def _write(self) -> None:
        if self._file is not None:
            cells = [{"cell": asdict(c), "outcome": asdict(o)} for c, o in self.done.items()]  # type: ignore[call-overload]
            write_text(self._file, json.dumps({"plan": self._plan, "cells": cells}) + "\n")
