"""How often does each sign of ``art-trainer analyze`` find its fault, and how often is it a false alarm?

Trains each kind of ``planted_faults.toml`` from several seeds and analyzes the runs' folders. A small model
of random weights imitates a clumsy player, then GRPO trains it, with an evaluation before and after. Only
that player is scripted. A fault is planted by what is paid, or by settings; what comes of it is left to
training. Detection is counted over all runs with the fault planted, false alarms over those without any fault
in which the sign was measured. Runs with another fault are in neither, as one fault brings others.

    python benchmarks/analyze_rates.py                  # some four minutes of one core
    python benchmarks/analyze_rates.py --first-seed 0   # seeds that were looked at while a sign was changed
    python benchmarks/analyze_rates.py --check          # exits 1 if a rate is not what analyze says of it
"""

from __future__ import annotations

import logging
import sys
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import harness
import numpy as np
import torch
from learner_workload import word_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from art_gym.wrappers.judging import Attempt, Rubric, Score
from art_trainer.analysis import Confidence, analyze
from art_trainer.analysis.detectors import RELIABILITY
from art_trainer.config import GRPOConfig
from art_trainer.errors import StalledError
from art_trainer.formatting import percent
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.evaluate import evaluate
from art_trainer.rollout.judge_rewards import JudgeRewards, RewardMix
from art_trainer.rollout.statistics import wilson_interval
from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder
from art_trainer.training.sft import ImitationConfig, warm_start
from art_trainer.training.trainer import GRPOTrainer

KINDS = tomllib.loads(Path(__file__).with_name("planted_faults.toml").read_text(encoding="utf-8"))
LEVELS = Confidence.POSSIBLE, Confidence.LIKELY
ANSWERS, QUESTIONS = "a b c d".split(), "A B C D".split()
FILLERS = "well so now very please great".split()
WORDS = ["<end>", *ANSWERS, *FILLERS, *QUESTIONS, *"low high wait bad look pass [ ]".split()]
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {{ '<end> ' if m['role'] == 'assistant' }}{% endfor %}"
PAID: Mapping[str, Callable[[Sequence[str]], float]] = {
    "detail": lambda words: 0.1 * len(words),
    "polite": lambda words: 0.7 * ("please" in words),
    "tags": lambda words: 0.7 * (words[0] == "["),
    "emphasis": lambda words: 0.4 * words.count("very"),
    "research": lambda words: 0.4 * (words == ["look"]),
    "modesty": lambda words: 0.8 * ("pass" in words),
    "presence": lambda words: 0.6,
}
"""What a valid reply earns beside its task, by the name of the reward's term."""
SCORES: Mapping[str, Callable[[str, Attempt], float]] = {
    "flattered": lambda text, _: 0.2 + 0.25 * text.split().count("great"),
    "likes_length": lambda text, _: len(text.split()) / 12,
    "likes_manners": lambda text, one: 0.3 * bool(one.success) + 0.7 * ("please" in text.split()),
    "fair": lambda text, one: one.reward + 0.4 * (zlib.crc32(text.encode()) / 2**32 - 0.5),
}
"""What judges give for the text of all replies."""


class Letters(gym.Env[str, str]):
    """Answer with letters, in at most four turns; ``look`` waits a turn, ``pass`` gives up; see KINDS."""

    observation_space = action_space = gym.spaces.Text(200)

    def __init__(self, game: str, **rules: Any) -> None:
        free = dict.fromkeys("pays wrong invalid per_turn quick noise grows whole unnamed".split(), 0)
        self.game, self.games, self.rules = game, 0, {**free, "worth": 1.0, "length": 1, **rules}
        self.teachers = {"clumsy": lambda env, rng: partial(clumsy_reply, rng, game)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        length = self.rules["length"]
        shown = self.np_random.integers(
            4, size=min(length, 1 + self.games // 10) if self.rules["grows"] else length
        )
        hidden = self.np_random.integers(4, size=1) if self.game in ("coin", "guess") else shown
        self.turn, self.games, self.key = 0, self.games + 1, [ANSWERS[i] for i in hidden]
        text = "wait" if self.game in ("guess", "climb") else " ".join(QUESTIONS[i] for i in shown)
        return text, {"task_id": text}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        rules, words = self.rules, action.split()
        self.turn += 1
        left = 4 - self.turn
        answer = [word for word in words if word in ANSWERS]
        hits = [one == other for one, other in zip(answer, self.key, strict=False)]
        right = sum(hits) == len(self.key)
        seen, over, info = "wait", "pass" in words, {}
        terms = {"correct": 0.0, "turn": -rules["per_turn"]}
        if not (answer or over or words == ["look"]):
            seen, info = "bad", {"error": {"kind": "no_answer", "message": "There is no letter."}}
            terms["invalid"] = -rules["invalid"]
        elif rules["pays"]:
            terms[rules["pays"]] = PAID[rules["pays"]](words)
        if answer and self.game == "climb":
            terms["points"], over, right = ANSWERS.index(answer[0]) / 4, not left, False
        elif answer and not over:
            over, seen = right or self.game != "guess", "low" if answer < self.key else "high"
            terms["correct"] = rules["worth"] * (right if rules["whole"] else sum(hits) / len(self.key))
            terms["wrong"] = -rules["wrong"] * (not right)
        if over or not left:
            terms["quick"] = rules["quick"] * left
            info["success"] = right and "pass" not in words
        noise = rules["noise"] * self.np_random.normal() if over or not left else 0.0
        if not rules["unnamed"]:
            info["score_terms"] = {name: value for name, value in terms.items() if value}
        return seen, float(sum(terms.values()) + noise), over, not (over or left), info


def clumsy_reply(rng: np.random.Generator, game: str, observation: str) -> str:
    """Some letter among other words, now and then the right ones, or a reply of another kind."""
    kind = rng.random()
    if kind < 0.2:
        return "look" if kind < 0.1 else "pass"
    before, after = (list(rng.choice(FILLERS, size=rng.integers(3))) for _ in range(2))
    letters = list(rng.choice(ANSWERS, size=rng.integers(1, 3)))
    if game == "pairs" and rng.random() < 0.4:
        letters = [word.lower() for word in observation.split() if word in QUESTIONS][: rng.integers(1, 4)]
    words = [*before, *(letters if kind < 0.9 else []), *after]
    return " ".join(["[", *words, "]"] if rng.random() < 0.15 else words or ["well"])


def judge(name: str, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
    """Score attempts by a function of ``SCORES``."""
    texts = {one.id: " ".join(step.reply for step in one.steps) for one in group}
    return {one.id: Score(float(np.clip(SCORES[name](texts[one.id], one), 0, 1))) for one in group}


def small_policy(config: GRPOConfig) -> TransformersPolicy:
    """A two-layer Llama of random weights with a token for each word."""
    sizes = {"hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": len(WORDS), "max_position_embeddings": 128}
    torch.manual_seed(config.seed)
    model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.1, bos_token_id=None, eos_token_id=0))
    tokenizer = word_tokenizer(WORDS, unk_token="bad", eos_token="<end>", chat_template=TEMPLATE)
    return TransformersPolicy(model, tokenizer, sampling=SamplingParams.for_training(config))


def make_run(kind: Mapping[str, Any], folder: Path, changes: Mapping[str, Any]) -> None:
    """Train one kind and leave the run in a folder."""
    settings = {"groups_per_step": 6, "num_generations": 6, "learning_rate": 3e-3, "max_steps": 30}
    settings |= {"max_completion_length": 10, "eval_temperature": 1.0, **kind.get("settings", {}), **changes}
    config = GRPOConfig(output_dir=str(folder), **settings)
    policy, make_env, seed = small_policy(config), partial(Letters, **kind["env"]), config.seed
    imitation = ImitationConfig(epochs=3, batch_size=8, learning_rate=5e-3)
    warm_start(policy, make_env, "clumsy", episodes=256, seed=seed, config=imitation)
    run = RunFolder(folder)
    run.write_settings({**config.to_mapping(), "env": kind["env"]["game"], "model": "scratch"})
    judges = {name: partial(judge, name) for name in kind.get("reward", ()) if name != "env"}
    reward = JudgeRewards(RewardMix(kind["reward"]), judges) if judges else None
    trainer = GRPOTrainer(policy, make_env, config, reward=reward)

    def evaluated(name: str) -> None:
        policy.sampling = SamplingParams.for_evaluation(config)
        run.write_evaluation(name, evaluate(policy, make_env, episodes=config.eval_episodes, seed=seed), [])
        policy.sampling = SamplingParams.for_training(config)

    evaluated(BEFORE)
    with suppress(StalledError):  # such a run ends early, as a user's does, without a second evaluation
        trainer.train()
        evaluated(AFTER)
    trainer.close()
    if reward is not None:
        reward.close()


def signs_of(folder: Path) -> dict[str, Confidence]:
    """How certain each sign is of a run."""
    run = analyze(folder).runs[0]
    stall = run.verdict.stall
    level = Confidence.NONE if stall is None else Confidence.STRONG if stall.dead else Confidence.LIKELY
    return {**{finding.name: finding.confidence for finding in run.findings}, "stall": level}


def rates(runs: Sequence[Mapping[str, Any]], sign: str) -> list[tuple[int, int]]:
    """Runs in which a sign was found and false alarms, of how many: at the first level, at the second."""
    planted = [run["signs"][sign] for run in runs if sign in run["planted"]]
    clean = [run["signs"][sign] for run in runs if not run["planted"]]
    groups = planted, [level for level in clean if level is not Confidence.UNKNOWN]
    return [
        (sum(one.rank >= least.rank for one in group), len(group)) for least in LEVELS for group in groups
    ]


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="one seed, seven steps: shows that it runs")
    parser.add_argument("--seeds", type=int, default=2, help="how many seeds of each kind")
    parser.add_argument("--first-seed", type=int, default=10, help="the first of them")
    options = parser.parse_args()
    changes = {"max_steps": 7, "eval_episodes": 8} if options.quick else {}
    seeds = range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # those of the planted faults
    runs = []
    with tempfile.TemporaryDirectory() as root:
        for name, kind in {**KINDS["faults"], **KINDS["clean"]}.items():
            for seed in seeds:
                folder = Path(root, str(len(runs)))
                make_run(kind, folder, {**changes, "seed": seed})
                signs = signs_of(folder)
                runs.append({"kind": name, "seed": seed, "planted": kind.get("planted", []), "signs": signs})
                seen = [f"{sign} ({level})" for sign, level in signs.items() if level.rank >= LEVELS[0].rank]
                print(f"{name}, seed {seed}: {', '.join(seen) or 'nothing'}", flush=True)
    table = {sign: rates(runs, sign) for sign in sorted(runs[0]["signs"])}
    rows = [
        [sign, *(f"{hit} of {of}: {percent(wilson_interval(hit, of))}" for hit, of in found)]
        for sign, found in table.items()
    ]
    heads = ("sign", *(f"{what}, {level}" for level in LEVELS for what in ("found", "false alarms")))
    harness.show("Signs that are at least possible, and at least likely [95%]", heads, rows)
    failures = []
    for sign, shown in ({} if options.quick else RELIABILITY).items():
        for measured, (hit, of) in zip(table[sign], shown, strict=True):
            interval = wilson_interval(*measured)
            if not interval.low <= hit / of <= interval.high:
                failures.append(f"{sign}: {measured[0]} of {measured[1]}, but analyze shows {hit} of {of}")
    return harness.finish(options, {"signs": table, "runs": runs}, failures)


if __name__ == "__main__":
    sys.exit(main())
