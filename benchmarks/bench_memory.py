"""How much memory does a run take, and does the plan say so? A warm start, an evaluation and an update.

A Llama of 135 million weights in 30 layers (SmolLM2-135M's shape, random weights, a tokenizer of words) plays
an environment whose observations are equally long, so that every context is as long as the plan expects. Each
phase's peak of resident memory is compared with what the plan of `art-trainer train --dry-run` says of it,
plus what the process takes before a weight is loaded.

    python benchmarks/bench_memory.py            # float32 and bfloat16
    python benchmarks/bench_memory.py --check    # exits 1 if a peak is more than a fifth off its plan
    python benchmarks/bench_memory.py --quick    # a tenth of the layers: shows that it runs
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import harness

MOST_OFF = 0.2
WORDS = [f"w{number}" for number in range(200)]
CHAT = "{% for m in messages %}{{ m['content'] }} <end> {% endfor %}"


class Talk(gym.Env[str, str]):
    """A given number of turns with observations of a given number of words."""

    def __init__(self, turns: int = 3, words: int = 60) -> None:
        self.observation_space = self.action_space = gym.spaces.Text(10_000)
        self.turns, self.words = turns, words
        self.baselines = {"say": lambda env, rng: lambda observation: " ".join(WORDS[:19])}

    def _say(self) -> str:
        return " ".join(self.np_random.choice(WORDS, self.words))

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Begin with four times as many words."""
        super().reset(seed=arguments.get("seed"))
        self.turn = 0
        return " ".join(self._say() for _ in range(4)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pay for nothing."""
        self.turn += 1
        return self._say(), float(len(action) % 7), self.turn == self.turns, False, {}


def resident(name: str) -> int:
    """Bytes of a line of this process's status, such as ``VmHWM``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def peak() -> int:
    """Most bytes resident since the last call."""
    found = resident("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")
    return found


def measure(**order: Any) -> dict[str, Any]:
    """Play and learn in this process; return peaks and the plan, in bytes."""
    import numpy as np
    import torch
    from learner_workload import word_tokenizer
    from transformers import AutoModelForCausalLM, LlamaConfig

    from art_trainer.config import GRPOConfig
    from art_trainer.inference.sampling import SamplingParams
    from art_trainer.inference.transformers_policy import TransformersPolicy
    from art_trainer.models.chat_template import ChatFormat
    from art_trainer.models.loading import ModelOptions
    from art_trainer.rollout.evaluate import evaluate
    from art_trainer.training.demonstrations import collect_demonstrations
    from art_trainer.training.learner import Learner
    from art_trainer.training.memory_plan import empty_model, episode_shape, plan_training
    from art_trainer.training.sft import ImitationConfig, imitate
    from art_trainer.types import EpisodeSpec, Group

    torch.set_num_threads(1)
    words = ["<unk>", "<end>", *WORDS]
    tokenizer = word_tokenizer(words, unk_token="<unk>", eos_token="<end>", chat_template=CHAT)
    shape: Any = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=order["layers"], num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=8192,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    config = GRPOConfig(
        max_completion_length=20, eval_episodes=order["episodes"], groups_per_step=2, num_generations=4,
        tokens_per_microbatch=order["tokens"], learning_rate=1e-5, share_prefixes=False,
        drop_zero_variance_groups=False,
    )  # fmt: skip
    options = ModelOptions(dtype=order["dtype"], device="cpu")
    episodes = episode_shape(ChatFormat(tokenizer), Talk, split=None, seed=0)
    plan = plan_training(empty_model(shape, options), config, options, episodes, max_batch=256)
    found: dict[str, Any] = {"before": resident("VmRSS"), "peaks": {}, "plan": {}}
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM
    model = make.from_config(shape, dtype=getattr(torch, order["dtype"]))
    sampling = SamplingParams.for_training(config)
    policy = TransformersPolicy(model, tokenizer, sampling=sampling)
    weights = plan.size("weights")
    found["parts"] = {part.name: part.size for part in plan.memory}

    def phase(name: str, planned: int) -> None:
        found["peaks"][name] = peak()
        found["plan"][name] = planned + found["before"]
        print(name, found["peaks"][name] / 2**20, found["plan"][name] / 2**20, file=sys.stderr, flush=True)

    peak()
    attempts = order["attempts"]
    starts = [EpisodeSpec(2 * number // attempts, rng_seed=number) for number in range(attempts)]
    shown = collect_demonstrations(policy, Talk, "say", starts)
    imitation = ImitationConfig(batch_size=attempts // 2, tokens_per_microbatch=order["tokens"])
    imitate(policy, shown, imitation, rng=np.random.default_rng(0))
    phase("warm start", plan.held("always") + plan.held("update"))
    evaluate(policy, Talk, episodes=order["episodes"], seed=0)
    phase("evaluation", weights + plan.held("rollout"))
    learner = Learner(model, config)
    half = len(shown) // 2
    learner.update([Group(tuple(shown[:half])), Group(tuple(shown[half:]))])
    learner.update([Group(tuple(shown[:half])), Group(tuple(shown[half:]))])
    phase("update", plan.held("always") + plan.held("update"))
    found["after"] = resident("VmRSS")
    return found


def main() -> int:
    """Measure each dtype in a process of its own."""
    made = harness.parser(__doc__, quick="a tenth of the layers: shows that it runs")
    made.add_argument("--episodes", type=int, default=48, help="episodes of the evaluation")
    made.add_argument("--tokens", type=int, default=2048, help="tokens of a micro-batch")
    made.add_argument("--attempts", type=int, default=8, help="episodes that are learned from")
    options = made.parse_args()
    order = {name: getattr(options, name) for name in ("episodes", "tokens", "attempts")}
    order["layers"] = 3 if options.quick else 30
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {"ratios": ratios}
    rows, failures = [], []
    for dtype in ("float32", "bfloat16"):
        found = figures[dtype] = harness.child(__file__, {**order, "dtype": dtype})
        for name, taken in found["peaks"].items():
            planned, phase = found["plan"][name], f"{dtype}, {name}"
            ratio = ratios[phase] = taken / planned
            rows.append([phase, *(f"{size / 2**30:.2f}" for size in (taken, planned)), f"{ratio:.2f}"])
            if abs(ratio - 1) > MOST_OFF:
                failures.append(f"{phase}: {ratio:.2f} of its plan")
    harness.show("Peaks of resident memory, GiB", ["", "measured", "planned", "ratio"], rows)
    return harness.finish(options, figures, failures)


if __name__ == "__main__":
    sys.exit(harness.start(main, measure))
