"""How many CPU threads suit a model? Forward and backward, and a sampling step, with 1, 2, … threads.

``art-trainer train`` takes the number of threads from the model's size and not from the clock: a number that
the clock chose would differ between two runs of one command, and with it the last digits of every sum. This
script is what the rule is checked with, see :func:`art_trainer.models.loading.default_threads`. On a busy
machine it says nothing.

    python benchmarks/bench_threads.py
    python benchmarks/bench_threads.py --quick --json FILE   # the smallest model: shows that it runs
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import harness
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

SIZES = ((64, 2), (128, 2), (256, 4), (512, 4), (768, 8), (1024, 12))
"""Width and layers; with a vocabulary of 2,048 words from 0.4 to 150 million weights."""
ROWS, LENGTH = 8, 128
"""Of the batch that is trained on; as many rows are sampled for."""


def make_model(hidden: int, layers: int) -> Qwen2ForCausalLM:
    """A random model of Qwen 2's architecture."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=2048,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 32,
            tie_word_embeddings=True,
        )
    )


def workloads(model: Qwen2ForCausalLM) -> dict[str, Callable[[], None]]:
    """What a training step spends its time on."""
    ids = torch.randint(2048, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))

    def update() -> None:
        model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1).mean().backward()
        model.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def sample() -> None:
        cache = model(input_ids=ids).past_key_values
        for _ in range(8):
            model(input_ids=ids[:, :1], past_key_values=cache)

    return {"update": update, "sample": sample}


def measure(hidden: int, layers: int, rounds: int, threads: list[int]) -> list[dict[str, float | str]]:
    """Seconds of the quickest of so many rounds, the numbers of threads taking turns."""
    model = make_model(hidden, layers)
    weights = sum(parameter.numel() for parameter in model.parameters())
    found: list[dict[str, float | str]] = []
    for name, work in workloads(model).items():
        best = dict.fromkeys(threads, float("inf"))
        for _ in range(rounds):
            for count in threads:
                torch.set_num_threads(count)
                start = time.perf_counter()
                work()
                best[count] = min(best[count], time.perf_counter() - start)
        found.append({"weights": weights, "work": name, **{str(n): t for n, t in best.items()}})
    return found


def main() -> int:
    """Measure and print."""
    parser = harness.parser(__doc__, quick="one round of the smallest model")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each; the quickest counts")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = [count for count in (1, 2, 4, 8, 16, 32) if count <= cores]
    sizes, rounds = (SIZES[:1], 1) if options.quick else (SIZES, options.rounds)
    found = [row for size in sizes for row in measure(*size, rounds, threads)]
    rows = [
        [
            f"{float(row['weights']) / 1e6:.1f} M",
            str(row["work"]),
            *(f"{1000 * float(row[str(n)]):.1f}" for n in threads),
        ]
        for row in found
    ]
    heads = ("weights", "work", *(f"{count} threads, ms" for count in threads))
    harness.show("Quickest of all rounds", heads, rows)
    return harness.finish(options, {"rows": found}, [])


if __name__ == "__main__":
    sys.exit(main())
