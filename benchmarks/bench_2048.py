"""How quick is 2048, beside the field? Steps per CPU-second of ours and of the quickest peers that PyPI has.

Random play on one core: one game as text and one as arrays through ``gym.make``, batches through
``gym.make_vec`` with observations, rewards, masks and resets. Every implementation runs in a process of its
own, every peer in a virtual environment of its own; all take turns, and the median of several runs counts. A
peer that cannot be installed is skipped with a line.

    python benchmarks/bench_2048.py                       # everything; the peers' installation takes minutes
    python benchmarks/bench_2048.py --venvs DIR           # keep their environments there for the next time
    python benchmarks/bench_2048.py --peers jumanji open_spiel
    python benchmarks/bench_2048.py --quick               # ours, and peers that are installed in DIR already
    python benchmarks/bench_2048.py --check               # exits 1 if a claim does not hold
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import harness

_SCRIPT = Path(__file__).parent / "peers_2048.py"
_OURS = "art-gym"
_VERSIONS = {"textarena": "0.7.4", "open_spiel": "2.0.2", "jumanji": "1.1.2"}
_PEERS = {name: f"{name}=={version}" for name, version in _VERSIONS.items()}
_COUNTS = (1, 4, 16, 64, 256, 1_024, 4_096, 8_192, 16_384, 65_536)
_COMPARED = (1_024, 8_192)

# The claims.
_TEXT_AT_LEAST, _ARRAY_AT_LEAST, _TIMES = 100_000, 156_000, 5


Rates = dict[str, dict[str, list[float]]]
"""Steps per CPU-second by implementation and kind of run, a list of runs each."""


def middle(rates: Rates, name: str, kind: str) -> float | None:
    """The median of an implementation's runs of a kind; ``None`` without one."""
    runs = rates.get(name, {}).get(kind)
    return statistics.median(runs) if runs else None


def install(name: str, folder: Path, *, only_ready: bool) -> Path | None:
    """The Python of a peer's virtual environment, made first if it is not ready; ``None`` without one."""
    home, ready = folder / name, folder / name / "ready"
    python = home / "bin" / "python"
    if ready.exists():
        return python
    if only_ready:
        return None
    print(f"installing {_PEERS[name]} …", file=sys.stderr, flush=True)
    venv.create(home, clear=True, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _PEERS[name]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1_200)
    except subprocess.TimeoutExpired:
        print(f"skipped {name}: its installation took more than 20 minutes")
        return None
    if done.returncode:
        print(f"skipped {name}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
        return None
    ready.touch()
    return python


def run_all(arguments: argparse.Namespace, venvs: Path) -> Rates:
    """Measure everything, each in turn, as often as asked."""
    rates: Rates = defaultdict(lambda: defaultdict(list))
    made = {name: install(name, venvs, only_ready=arguments.quick) for name in arguments.peers}
    pythons = {_OURS: Path(sys.executable), **{name: python for name, python in made.items() if python}}
    for turn in range(arguments.repeat):
        print(f"run {turn + 1} of {arguments.repeat}", file=sys.stderr, flush=True)
        for name, python in list(pythons.items()):
            order = {"name": name, "seconds": arguments.seconds, "counts": arguments.counts}
            try:
                found = harness.child(_SCRIPT, order, python)
            except RuntimeError as error:
                print(f"skipped {name}: {str(error).strip().splitlines()[-1]}")
                del pythons[name]
                continue
            for kind, rate in found.items():
                rates[name][kind].append(rate)
    return rates


def show(rates: Rates, counts: Sequence[int]) -> None:
    """Print the comparison and the growth."""
    rows = []
    for kind in ("text", "array", *(f"vector {count}" for count in _COMPARED)):
        ours = middle(rates, _OURS, kind)
        for name in rates:
            found = middle(rates, name, kind)
            if ours is not None and found is not None:
                rows.append([kind, name, f"{found:,.0f}", f"{ours / found:.1f}x"])
    harness.show("Compared", ("kind", "implementation", "steps per CPU-second", "ours is"), rows)
    rows = []
    for count in counts:
        rate = middle(rates, _OURS, f"vector {count}")
        if rate is not None:
            rows.append([f"{count:,}", f"{rate:,.0f}", f"{1e9 / rate:.1f}"])
    harness.show("By number of boards", ("boards", "steps per CPU-second", "ns a board"), rows)


def check(rates: Rates) -> list[str]:
    """The claims that do not hold, as text; what was not measured is not judged."""
    failures = []
    for kind, least in (("text", _TEXT_AT_LEAST), ("array", _ARRAY_AT_LEAST)):
        ours = middle(rates, _OURS, kind)
        if ours is not None and ours < least:
            failures.append(f"{kind}: {ours:,.0f} steps per CPU-second, not {least:,}")
    for kind, times in (("text", 1), ("array", 1), *((f"vector {count}", _TIMES) for count in _COMPARED)):
        ours = middle(rates, _OURS, kind)
        for name in _PEERS:
            theirs = middle(rates, name, kind)
            if ours is not None and theirs is not None and ours < times * theirs:
                failures.append(f"{kind}: {ours:,.0f} is {ours / theirs:.1f} times {name}'s, not {times}")
    return failures


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="one short run, and nothing is installed")
    parser.add_argument("--peers", nargs="*", choices=_PEERS, default=list(_PEERS), help="which peers")
    parser.add_argument("--venvs", type=Path, help="where the peers' environments are kept")
    parser.add_argument("--seconds", type=float, help="CPU-seconds for one figure (default 2)")
    parser.add_argument("--repeat", type=int, help="how many runs the middle one is taken of (default 3)")
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or (0.4 if arguments.quick else 2.0)
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 3)
    arguments.counts = (1, *_COMPARED) if arguments.quick else _COUNTS
    with tempfile.TemporaryDirectory() as temporary:
        venvs = arguments.venvs.resolve() if arguments.venvs else Path(temporary)
        rates = run_all(arguments, venvs)
    show(rates, arguments.counts)
    last = f"{middle(rates, _OURS, 'vector 8192') or 0:,.0f} steps per CPU-second with 8,192 boards"
    ours = middle(rates, _OURS, "array") or float("nan")
    ratios = {
        f"{count} boards over one": (middle(rates, _OURS, f"vector {count}") or 0) / ours
        for count in _COMPARED
    }
    return harness.finish(arguments, {"rates": rates, "ratios": ratios}, check(rates), last)


if __name__ == "__main__":
    sys.exit(main())
