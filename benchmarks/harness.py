"""What the benchmarks share: flags, child processes, tables, the file of figures, and the exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def parser(doc: str | None, *, quick: str = "little of each: shows that it runs") -> argparse.ArgumentParser:
    """A parser with ``--quick``, ``--json FILE`` and ``--check``.

    Args:
        doc: The script's docstring.
        quick: What ``--quick`` does.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    made.add_argument("--check", action="store_true", help="exit 1 if a claim does not hold")
    return made


def start(main: Callable[[], int], measure: Callable[..., Mapping[str, Any]]) -> int:
    """Call ``main``; in a process that :func:`child` started, print what ``measure`` finds for the order."""
    if sys.argv[1:2] != ["--child"]:
        return main()
    print(json.dumps(measure(**json.loads(sys.argv[2]))))
    return 0


def child(
    script: Path | str, order: Mapping[str, Any], python: Path | str = sys.executable
) -> dict[str, Any]:
    """Run a script with ``--child ORDER`` in a process of its own; return the JSON of its last line.

    A script with a ``main`` takes the order by :func:`start`.

    Raises:
        RuntimeError: If it fails.
    """
    command = [str(python), str(script), "--child", json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def training_flags(made: argparse.ArgumentParser) -> None:
    """Add ``--at-once`` and ``--keep``, for a script that trains several times."""
    made.add_argument("--at-once", type=int, default=1, help="trainings at the same time, a core each")
    made.add_argument("--keep", type=Path, help="keep the run folders here")


@contextlib.contextmanager
def trainings(options: argparse.Namespace) -> Iterator[tuple[Path, ThreadPoolExecutor]]:
    """The folder for the runs' folders, and threads for as many trainings as are wanted at once."""
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.at_once) as pool:
        root = options.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        yield root, pool


def train(words: Sequence[str], folder: Path, options: argparse.Namespace) -> None:
    """Run ``art-trainer train`` as a user would, with this checkout; RuntimeError if it fails.

    What it prints is appended to a file beside the run's folder. If several train at once, each has a thread.
    """
    command = [sys.executable, "-m", "art_trainer", "train", *words, "--output-dir", str(folder)]
    log = folder.with_name(f"{folder.name}.log")
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    if options.at_once > 1:
        command += ["--threads", "1"]
        environment["OMP_NUM_THREADS"] = "1"
    with log.open("a") as stream:
        done = subprocess.run(command, env=environment, stdout=stream, stderr=stream, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")


def cpu_seconds() -> float:
    """What the child processes that have ended used, printed too."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(f"CPU-seconds in all: {seconds:.0f}")
    return seconds


def machine() -> dict[str, Any]:
    """What a figure was measured on."""
    system = f"{platform.system()} {platform.machine()}"
    return {"machine": system, "cores": os.cpu_count(), "python": platform.python_version()}


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column stands left, the others right."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    print(f"\n{title}")
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]), flush=True)


def finish(
    options: argparse.Namespace, figures: Mapping[str, Any], failures: Sequence[str], last: str = ""
) -> int:
    """Write the figures, print the claims that do not hold, then the most important figure.

    Args:
        options: Parsed by :func:`parser`.
        figures: JSON-able.
        failures: The claims that do not hold.
        last: The last line.

    Returns:
        The exit code: 1 if ``--check`` was given and a claim does not hold.
    """
    if options.json is not None:
        options.json.write_text(json.dumps({**machine(), **figures}, indent=1) + "\n", encoding="utf-8")
    for failure in failures:
        print(f"does not hold: {failure}")
    if last:
        print(last)
    return 1 if options.check and failures else 0
