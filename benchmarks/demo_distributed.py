"""A server, three workers and the dashboard on one machine, and everything that can go wrong.

The embedded model learns email search as in `make train`, but workers play. While it trains, one worker is
killed with -9, one is stopped (SIGSTOP) until its leases are given to others, and the server itself is killed
with -9 and started again from its folder. In the end the run must have trained as many groups as it was asked
for, each once, and learned what a single process learns.

    make demo-distributed                                  # the same as
    python benchmarks/demo_distributed.py --check
    python benchmarks/demo_distributed.py --quick          # few steps: shows that it runs

The dashboard's address is printed: open it and watch.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import harness

from art_trainer.tracking.episode_store import iter_steps
from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder

LEASE_SECONDS = 5
CLOSE_ENOUGH = 0.05
"""By how much success may be below a single process's: each rests on 256 episodes."""


@dataclass
class Story:
    """What happened, and what came of it."""

    steps: int
    groups_per_step: int
    killed_worker_at: int = -1
    stopped_worker_at: int = -1
    killed_server_at: int = -1
    groups_trained: int = 0
    groups_twice: int = 0
    before: float = 0.0
    after: float = 0.0
    alone: float | None = None
    results: dict[str, int] = field(default_factory=dict)
    """Results by outcome and leases by their end, as both lives of the server counted them."""
    seconds: float = 0.0


class Cast:
    """The processes, each with its words in a file.

    Args:
        folder: Where everything lies.
        port: The server's.
        words: The server's settings.
    """

    def __init__(self, folder: Path, port: int, words: list[str]) -> None:
        self._folder = folder
        self._words = words
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        token = secrets.token_urlsafe(24)
        self._environment = {**os.environ, "ART_SERVER_TOKEN": token, "OMP_NUM_THREADS": "1"}
        self.token = token
        self.workers: list[subprocess.Popen[bytes]] = []
        self.server = self.start_server()

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "art_trainer", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )

    def start_server(self) -> subprocess.Popen[bytes]:
        """Begin the run, or go on with it."""
        run = self._folder / "run"
        words = ["--resume", str(run)] if run.exists() else ["--output-dir", str(run), *self._words]
        return self._start(
            "server", ["serve", *words, "--port", str(self._port), "--lease-seconds", str(LEASE_SECONDS)]
        )

    def start_worker(self) -> None:
        """Add a worker."""
        words = ["worker", "--server", self.url, "--capacity", "32", "--cache", str(self._folder / "cache")]
        self.workers.append(self._start(f"worker-{len(self.workers)}", words))

    def status(self) -> dict[str, Any] | None:
        """What the server says of itself; ``None`` where it does not answer."""
        request = urllib.request.Request(
            f"{self.url}/status", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError:
            return None
        return found

    def end(self) -> None:
        """Leave nothing behind."""
        for process in (*self.workers, self.server):
            if process.poll() is None:
                process.kill()
            process.wait()


def play(cast: Cast, story: Story) -> None:
    """Let it train, and do the damage at a quarter, a half and three quarters of it."""
    for _ in range(3):
        cast.start_worker()
    last, earlier = -1, Counter[str]()
    while cast.server.poll() is None:
        time.sleep(0.25)
        status = cast.status()
        if status is None:
            continue
        story.results = dict(earlier + Counter(status["results"]))
        step = status["step"]
        if step != last:
            last = step
            known = [client["id"] for client in status["clients"] if client["connected"]]
            print(f"step {step}/{status['max_steps']}, {status['state']}, {len(known)} workers", flush=True)
        if story.killed_worker_at < 0 and step >= story.steps // 4:
            story.killed_worker_at = step
            cast.workers[0].send_signal(signal.SIGKILL)
            print("killed a worker with -9", flush=True)
        elif story.stopped_worker_at < 0 and step >= story.steps // 2:
            story.stopped_worker_at = step
            cast.workers[1].send_signal(signal.SIGSTOP)
            print("stopped a worker", flush=True)
        elif story.killed_server_at < 0 and step >= 3 * story.steps // 4:
            story.killed_server_at = step
            cast.server.send_signal(signal.SIGKILL)
            cast.server.wait()
            earlier = Counter(story.results)
            print("killed the server with -9, and start it again", flush=True)
            cast.server = cast.start_server()
            cast.workers[1].send_signal(signal.SIGCONT)
    if cast.server.returncode:
        raise SystemExit(f"the server ended with {cast.server.returncode}: see server.log")


def tell(run: RunFolder, story: Story) -> None:
    """Read from the run's files what was trained on."""
    times: Counter[tuple[int, int]] = Counter()
    for record in iter_steps(run.path):
        for group in record.groups:
            times[record.step, group.episodes[0].seed] += 1
    story.groups_trained = len(times)
    story.groups_twice = sum(count > 1 for count in times.values())
    before, after = run.evaluation(BEFORE), run.evaluation(AFTER)
    if before is None or after is None or before.success is None or after.success is None:
        raise SystemExit("the run has no evaluation before and after")
    story.before, story.after = before.success.value, after.success.value


def alone(folder: Path, words: list[str]) -> float:
    """The same training in a single process."""
    run = folder / "alone"
    command = [
        sys.executable,
        "-m",
        "art_trainer",
        "train",
        *words,
        "--output-dir",
        str(run),
        "--threads",
        "1",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = RunFolder(run).evaluation(AFTER)
    if found is None or found.success is None:
        raise SystemExit("the single process has no evaluation")
    return found.success.value


def failures(story: Story) -> list[str]:
    """The claims that do not hold, as text."""
    wanted = story.steps * story.groups_per_step
    failed = []
    if story.groups_trained != wanted or story.groups_twice:
        failed.append(f"{story.groups_trained} of {wanted} groups were trained, {story.groups_twice} twice")
    if min(story.killed_worker_at, story.stopped_worker_at, story.killed_server_at) < 0:
        failed.append("the run was over before all damage was done")
    if not story.results.get("expired"):
        failed.append("no lease ever expired: nothing was taken from the lost workers")
    if story.alone is not None and story.after < story.alone - CLOSE_ENOUGH:
        failed.append(f"success {story.after:.3f}, a single process {story.alone:.3f}")
    return failed


def main() -> int:
    """Tell the story."""
    parser = harness.parser(__doc__, quick="few steps, no comparison: shows that it runs")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--port", type=int, default=8270)
    parser.add_argument("--keep", type=Path, help="leave run and logs in this folder")
    arguments = parser.parse_args()
    story = Story(8 if arguments.quick else arguments.steps, 8 if arguments.quick else 32)
    words = ["--env", "art/Email-v0", "--env-args", "difficulty=1", "--model", "art-tiny", "--seed", "0"]
    words += ["--max-steps", str(story.steps), "--set", f"groups_per_step={story.groups_per_step}"]
    words += ["--set", "baselines=[]", "--eval-episodes", "32" if arguments.quick else "256"]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cast = Cast(folder, arguments.port, [*words, "--save-steps", "3"])
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(cast.token)
        print(f"dashboard: {cast.url}/ wants the token in {folder / 'token'}", flush=True)
        try:
            play(cast, story)
        finally:
            cast.end()
        tell(RunFolder(folder / "run"), story)
        story.seconds = time.perf_counter() - began
        if not arguments.quick:
            story.alone = alone(folder, words)
    print(f"results: {story.results}")
    wanted = story.steps * story.groups_per_step
    print(f"{story.groups_trained} of {wanted} groups trained, {story.groups_twice} twice")
    single = "" if story.alone is None else f" (a single process: {story.alone:.3f})"
    last = f"success {story.before:.3f} -> {story.after:.3f}{single}, {story.seconds:.0f} s"
    return harness.finish(arguments, asdict(story), failures(story), last)


if __name__ == "__main__":
    sys.exit(main())
