"""How long does one step of GRPO take, and where does the time go? Ours and TRL's.

The same model, group and number of tokens (``learner_workload.py``) through two trainers, in turn, each in a
process of its own: this project's ``GRPOTrainer``, and TRL's with its ``environment_factory``. Times are
CPU-seconds of the process, on a GPU seconds, medians over the steps after the first.

    python benchmarks/bench_learner.py                        # the workloads W, W-long, single and smollm2
    python benchmarks/bench_learner.py --workloads W --steps 9
    python benchmarks/bench_learner.py --workloads 0.5b-4k 7b-lora --ways ours trl    # on a GPU
    python benchmarks/bench_learner.py --check                # exits 1 if a claim does not hold
    python benchmarks/bench_learner.py --quick                # two steps of W, once each: it works
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import harness
import learner_workload as work
import torch
from learner_workload import WORKLOADS, Workload

CPU = [name for name, workload in WORKLOADS.items() if not workload.gpu]
CLAIMS = {
    "W": {"step": 3.0, "generation": 4.0, "update": 2.2, "memory": 2.0},
    "W-long": {"step": 5.0},
    "single": {"step": 2.4, "update": 4.5},
    "smollm2": {"step": 3.0},
}
"""At least so many times TRL's rate, or so many times less memory."""


@dataclass
class Clock:
    """CPU-seconds by phase, on a GPU seconds; one list entry a step."""

    gpu: bool = False
    phases: dict[str, list[float]] = field(default_factory=dict)
    _now: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self.now()
        yield
        self._now[name] = self._now.get(name, 0.0) + self.now() - start

    def now(self) -> float:
        """The time, when a GPU has done what it was asked."""
        if not self.gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted to a phase."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return wrapped

    def end_step(self) -> None:
        for name, seconds in self._now.items():
            self.phases.setdefault(name, []).append(seconds)
        self._now = {}


def run_ours(workload: Workload, steps: int, clock: Clock) -> None:
    """This project's trainer."""
    trainer = work.make_trainer(workload, steps)
    learner = trainer.learner
    learner._loss = clock.timed("forward", learner._loss)  # type: ignore[method-assign]
    learner._guard.step = clock.timed("optimizer", learner._guard.step)  # type: ignore[method-assign]
    torch.Tensor.backward = clock.timed("backward", torch.Tensor.backward)  # type: ignore[method-assign]
    for _ in range(steps):
        with clock.phase("step"):
            with clock.phase("generation"):
                groups = trainer.collect_episodes()
            trainer.update_policy(groups)
        clock.end_step()


class _Tool:
    """The environment as TRL takes it: every public method but two is a tool."""

    workload: Workload

    def __init__(self) -> None:
        self._env, self._return = work.WordsEnv(self.workload), 0.0

    def reset(self, seed: int = 0, **row: Any) -> None:
        self._env.reset(seed=seed)
        self._return = 0.0

    def act(self, text: str) -> str:
        """Take a step.

        Args:
            text: What to say.

        Returns:
            What comes back.
        """
        observation, reward, *_ = self._env.step(text)
        self._return += reward
        return observation

    def get_reward(self) -> float:
        return self._return


RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant", "content": ""},
    "start_anchor": "<|im_start|> assistant",
    "fields": {"tool_calls": {
        "close_pattern": r"<\|im_end\|>\s*", "content": "text", "repeats": True,
        "transform": {"type": "function", "function": {"name": "act", "arguments": {"text": "{content}"}}},
    }},
}  # fmt: skip
"""Makes every turn one call of ``act``, whatever it says."""


def run_trl(workload: Workload, steps: int, clock: Clock) -> None:
    """TRL's trainer, with its environment factory."""
    os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = work.make_tokenizer(workload)
    tokenizer.response_template = RESPONSE_TEMPLATE
    _Tool.workload = workload
    seeds = range(steps * workload.groups)
    first = [work.WordsEnv(workload).reset(seed=seed)[0] for seed in seeds]
    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": said}], "seed": i} for i, said in enumerate(first)]
    )
    at_once = workload.microbatch or workload.attempts
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=at_once, max_steps=steps,
        gradient_accumulation_steps=workload.attempts // at_once, num_generations=workload.group,
        max_completion_length=workload.completion, learning_rate=1e-6,
        generation_kwargs={"max_new_tokens": workload.action}, max_tool_calling_iterations=workload.turns - 1,
        bf16=workload.gpu, use_cpu=not workload.gpu, gradient_checkpointing=False, report_to="none",
        logging_steps=10**6, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip

    class EndOfStep(TrainerCallback):
        start = 0.0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            EndOfStep.start = clock.now()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock._now["step"] = clock.now() - EndOfStep.start
            clock.end_step()

    trainer = GRPOTrainer(
        model=work.make_model(workload), args=config, train_dataset=rows, processing_class=tokenizer,
        callbacks=[EndOfStep()], environment_factory=_Tool,
    )  # fmt: skip
    trainer._generate = clock.timed("generation", trainer._generate)
    trainer._compute_loss = clock.timed("forward", trainer._compute_loss)
    trainer.accelerator.backward = clock.timed("backward", trainer.accelerator.backward)
    trainer.create_optimizer()
    trainer.optimizer.step = clock.timed("optimizer", trainer.optimizer.step)
    trainer.train()


RUN = {"ours": run_ours, "trl": run_trl}


@dataclass(frozen=True)
class Result:
    """One way at one workload: median CPU-seconds by phase, and what its memory grew by."""

    way: str
    workload: str
    seconds: dict[str, float]
    memory_mb: float

    @property
    def update(self) -> float:
        """Forward and backward."""
        return self.seconds["forward"] + self.seconds["backward"]


def child(way: str, name: str, steps: int, threads: int) -> dict[str, Any]:
    """Run one way of a workload in this process."""
    workload = WORKLOADS[name]
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    work.make_model(workload)
    # What libraries weigh is in nobody's memory.
    import peft  # noqa: F401
    import trl  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock = Clock(workload.gpu)
    RUN[way](workload, steps, clock)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if workload.gpu:
        grown = torch.cuda.max_memory_allocated() / 2**20
    # The first step warms up caches, allocator and thread pools.
    return {"phases": {name: values[1:] for name, values in clock.phases.items()}, "memory_mb": grown}


def measure(workload: Workload, steps: int, threads: int, ways: Sequence[str], rounds: int) -> list[Result]:
    """All ways, taking turns, each time in a process of its own."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            order = {"way": way, "name": workload.name, "steps": steps, "threads": threads}
            found[way].append(harness.child(__file__, order))
    return [_result(way, workload, parts) for way, parts in found.items()]


def _result(way: str, workload: Workload, parts: list[dict[str, Any]]) -> Result:
    names = parts[0]["phases"]
    seconds = {name: statistics.median([s for p in parts for s in p["phases"][name]]) for name in names}
    return Result(way, workload.name, seconds, min(part["memory_mb"] for part in parts))


def gflop_floor(workload: Workload) -> tuple[float, float]:
    """Fewest GFLOP of a step's rollout and of its update: every shared token once, logits where sampled.

    Two operations a weight and token forward, four more backward, two below an adapter; attention counts the
    keys each query sees.
    """
    d = workload.hidden
    layer = (2 + 2 * workload.key_heads / workload.heads) * d * d + 3 * d * workload.inner
    suffix = workload.length - workload.prompt
    tokens = workload.prompt + workload.group * suffix
    sampled = workload.group * workload.turns * workload.action
    keys = workload.prompt**2 / 2 + workload.group * suffix * (workload.prompt + suffix / 2)
    attention = 2 * 2 * d * keys * workload.layers
    weights = 2 * tokens * layer * workload.layers + 2 * sampled * d * workload.vocabulary
    update = (2 if workload.lora else 3) * weights + 3 * attention
    return workload.groups * (weights + attention) / 1e9, workload.groups * update / 1e9


def matrix_gflops(workload: Workload, threads: int) -> float:
    """What this machine's matrix product does a CPU-second, at the size of the update's largest one."""
    torch.set_num_threads(threads)
    d, inner = workload.hidden, workload.inner
    dtype = torch.bfloat16 if workload.lora or workload.gpu else torch.float32
    device = "cuda" if workload.gpu else "cpu"
    sizes = (workload.group * workload.completion, d), (d, inner)
    left, right = (torch.randn(size, device=device).to(dtype) for size in sizes)
    clock, rates = Clock(workload.gpu), []
    for _ in range(20):
        start = clock.now()
        for _ in range(5):
            left @ right
        rates.append(5 * 2 * left.shape[0] * d * inner / (clock.now() - start) / 1e9)
    return statistics.median(rates)


def show(results: list[Result], workload: Workload, threads: int) -> None:
    """One table a workload."""
    rate = matrix_gflops(workload, threads)
    floors = gflop_floor(workload)
    columns = ("step", "generation", "forward", "backward", "optimizer")
    rows = []
    for result in results:
        times = [f"{result.seconds.get(name, 0.0):.3f}" for name in columns]
        share = f"{sum(floors) / rate / result.seconds['step']:.0%}"
        rows.append([result.way, *times, f"{result.memory_mb:.0f}", share])
    title = (
        f"{workload.name}: prompt {workload.prompt}, {workload.turns} turns of {workload.action} + "
        f"{workload.observation} tokens, group {workload.group}; matrix product {rate:.0f} GFLOP/CPU-s, "
        f"floor {floors[0] / rate:.2f} + {floors[1] / rate:.2f} s ({floors[0]:.0f} + {floors[1]:.0f} GFLOP)"
    )
    harness.show(title, ("way", *columns, "memory MB", "of floor"), rows)


def ratios(results: list[Result]) -> dict[str, dict[str, float]]:
    """By workload, how many times TRL's rate (or less memory) ours is."""
    found: dict[str, dict[str, float]] = {}
    by_key = {(r.workload, r.way): r for r in results}
    for name in {r.workload for r in results}:
        ours, theirs = by_key[name, "ours"], by_key.get((name, "trl"))
        if theirs is not None:
            ratios = {what: theirs.seconds[what] / ours.seconds[what] for what in ("step", "generation")}
            ratios |= {"update": theirs.update / ours.update, "memory": theirs.memory_mb / ours.memory_mb}
            found[name] = ratios
    return found


def check(found: dict[str, dict[str, float]]) -> list[str]:
    """The claims that do not hold for the workloads that were measured."""
    return [
        f"{name} {what}: {found[name][what]:.2f} times TRL, not {least:g}"
        for name, claims in CLAIMS.items()
        if name in found
        for what, least in claims.items()
        if found[name][what] < least
    ]


def main() -> int:
    parser = harness.parser(__doc__, quick="two steps of W each")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=CPU)
    parser.add_argument("--ways", nargs="+", choices=RUN, default=list(RUN))
    parser.add_argument("--rounds", type=int, default=2, help="how often each way gets its turn")
    parser.add_argument("--steps", type=int, default=5, help="steps of each run, the first not counted")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workloads, arguments.steps, arguments.rounds = ["W"], 2, 1
    facts: dict[str, Any] = {"torch": torch.__version__, "threads": arguments.threads}
    results = []
    for name in arguments.workloads:
        workload, threads = WORKLOADS[name], arguments.threads
        part = measure(workload, arguments.steps, threads, arguments.ways, arguments.rounds)
        show(part, workload, threads)
        results += part
    facts |= {"results": [asdict(r) for r in results], "ratios": ratios(results)}
    return harness.finish(arguments, facts, check(facts["ratios"]))


if __name__ == "__main__":
    sys.exit(harness.start(main, child))
