"""How fast is a step of GRPO on one GPU, and how much memory does it take beside what the plan says?

Random weights in Qwen2.5's sizes (``learner_workload.py``), bfloat16: four groups of 16 at a prompt of 1,024
tokens, six turns of 64 sampled tokens, 128 tokens between. MFU is the floating-point operations that the
update needs at least, over its time and the GPU's rate for dense bfloat16 by its data sheet.

    python benchmarks/bench_gpu.py                      # 0.5B, 1.5B, 7B with an adapter; 0.5B whole
    python benchmarks/bench_gpu.py --workloads 7b-lora --steps 5
    python benchmarks/bench_gpu.py --check              # exits 1 if a claim does not hold
    python benchmarks/bench_gpu.py --quick              # one step of the smallest
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import harness
import learner_workload as work
import torch
from bench_learner import gflop_floor
from learner_workload import GPU, WORKLOADS

from art_trainer.models.loading import ModelOptions
from art_trainer.training.memory_plan import EpisodeShape, empty_model, plan_training

PEAK_TFLOPS = 989.0
"""An H100's and an H200's, SXM, by NVIDIA's data sheets."""
CLAIMS = {
    "0.5b-lora": (6500, 0.115), "1.5b-lora": (5000, 0.2), "7b-lora": (3000, 0.35), "0.5b-full": (9500, 0.17),
}  # fmt: skip
"""On an H100: at least so many tokens sampled a second, and such a share of the peak in the update."""
MOST_OVER_PLAN = 1.2
"""Claim: memory peaks at no more than so many times the plan."""


def measure(name: str, steps: int) -> dict[str, Any]:
    """Train a workload for some steps after one that is not counted; medians."""
    workload = WORKLOADS[name]
    device = torch.device("cuda")
    trainer = work.make_trainer(workload, steps + 1)
    model: Any = trainer.policy.model
    base = model.get_base_model() if workload.lora else model
    options = ModelOptions(dtype="bfloat16", lora=workload.lora or None)
    shape = EpisodeShape(workload.prompt, workload.observation, workload.turns)
    empty = empty_model(base.config, options)
    plan = plan_training(empty, trainer.config, options, shape, max_batch=workload.attempts)
    found: dict[str, list[float]] = {}

    def phase(name: str, call: Any, *given: Any) -> Any:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        result = call(*given)
        torch.cuda.synchronize(device)
        found.setdefault(f"{name} s", []).append(time.perf_counter() - start)
        found.setdefault(f"{name} GiB", []).append(torch.cuda.max_memory_allocated(device) / 2**30)
        return result

    for _ in range(steps + 1):
        groups = phase("rollout", trainer.collect_episodes)
        metrics = phase("update", trainer.update_policy, groups)
    medians = {name: statistics.median(values[1:]) for name, values in found.items()}
    computed = workload.groups * (workload.prompt + workload.group * workload.completion)
    tflop = gflop_floor(workload)[1] / 1000
    return {
        **medians,
        "rollout plan GiB": (plan.held("always") + plan.held("rollout")) / 2**30,
        "update plan GiB": (plan.held("always") + plan.held("update")) / 2**30,
        "sampled/s": workload.attempts * workload.turns * workload.action / medians["rollout s"],
        "trained/s": computed / medians["update s"],
        "MFU": tflop / medians["update s"] / PEAK_TFLOPS,
        "KL": metrics["kl"],
    }


def failures(name: str, found: dict[str, Any]) -> list[str]:
    """The claims that do not hold."""
    sampled, mfu = CLAIMS.get(name, (0, 0.0))
    held = {
        f"{found['sampled/s']:.0f} tokens sampled a second, not {sampled}": found["sampled/s"] >= sampled,
        f"{found['MFU']:.1%} MFU, not {mfu:.0%}": found["MFU"] >= mfu,
    }
    for phase in ("rollout", "update"):
        ratio = found[f"{phase} GiB"] / found[f"{phase} plan GiB"]
        held[f"{phase}: {ratio:.2f} times the planned memory"] = ratio <= MOST_OVER_PLAN
    return [f"{name}: {claim}" for claim, holds in held.items() if not holds]


def main() -> int:
    """Measure one workload after the other."""
    parser = harness.parser(__doc__, quick="one step of 0.5b-lora")
    parser.add_argument("--workloads", nargs="+", choices=[w.name for w in GPU], default=list(CLAIMS))
    parser.add_argument("--steps", type=int, default=2, help="steps that count")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU that PyTorch can use")
    if arguments.quick:
        arguments.workloads, arguments.steps = ["0.5b-lora"], 1
    results = {
        name: harness.child(__file__, {"name": name, "steps": arguments.steps})
        for name in arguments.workloads
    }
    columns = list(next(iter(results.values())))
    rows = [[name, *(f"{found[column]:.3g}" for column in columns)] for name, found in results.items()]
    harness.show(torch.cuda.get_device_name(), ["", *columns], rows)
    broken = [failure for name, found in results.items() for failure in failures(name, found)]
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}
    return harness.finish(arguments, facts, broken)


if __name__ == "__main__":
    sys.exit(harness.start(main, measure))
