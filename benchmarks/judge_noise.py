"""What is training worth under a judge that is wrong by a known amount, and under a rubric?

Each training is one of art-tiny by GRPO on the embedded mailbox, with the settings of the recipe `email` but
fewer steps; what it pays is the environment's own reward, the rubric's score (with and without the facts that
tell what was right), or the score of a judge that ranks by the true reward and shuffles a share of the groups
(`benchmarks/noisy_judge.py`). What is measured is always true success on held-out tasks, before and after.
The 95% intervals are over tasks; the luck of training shows between the seeds.

    python benchmarks/judge_noise.py --json noise.json         # 9 rewards, 3 seeds
    python benchmarks/judge_noise.py --json noise.json --plot noise.svg --at-once 2
    python benchmarks/judge_noise.py --noise 0,1 --rewards ""  # some of them
    python benchmarks/judge_noise.py --check                   # exits 1 if the claim does not hold
    python benchmarks/judge_noise.py --quick                   # one seed, 2 steps: shows that it runs
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import harness
import numpy as np
from charts import COLORS, Panel, page
from noisy_judge import NoisyJudge

from art_gym.wrappers.judging import Judge, RubricJudge
from art_gym.wrappers.judging.agreement import kendall_tau_b
from art_trainer.analysis.judge_evaluation import blind_judge
from art_trainer.cli.run_config import read_recipe
from art_trainer.formatting import number, points
from art_trainer.rollout.envs import env_maker
from art_trainer.rollout.statistics import paired_difference, rate_interval
from art_trainer.training.run_settings import Layer, merge_settings
from art_trainer.types import Interval

NOISE = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
NOISY = "noisy:"
REWARDS = ("env", "rubric", "rubric-without-facts")
BEFORE = "before"
"""The reward that trains nothing."""

RISE = 0.5
"""The claim: with a judge that is never wrong, success rises by more than this in every seed."""
CHANCE = 0.05
"""The claim: a fall of success with noise like the one measured has a smaller chance of being luck."""
_SHUFFLES = 10_000


@dataclass(frozen=True)
class Outcome:
    """True success on the held-out episodes, which are the same for all rewards of a seed."""

    success: list[bool]
    tasks: list[str]

    @property
    def level(self) -> float:
        return float(np.mean(self.success))


def judge_of(reward: str, seed: int) -> Judge | None:
    """Who pays; nobody but the environment for `env`."""
    if (noise := noise_of(reward)) is not None:
        return NoisyJudge(noise, seed)
    judges = {"rubric": RubricJudge(), "rubric-without-facts": blind_judge(RubricJudge())}
    return judges.get(reward)


def train(reward: str, seed: int, changes: Mapping[str, Any]) -> Outcome:
    """Train with a reward, and play the held-out starts."""
    # Torch takes seconds to import, which the process that only waits need not.
    from art_trainer.inference.sampling import SamplingParams
    from art_trainer.rollout.evaluate import evaluate
    from art_trainer.rollout.judge_rewards import JudgeRewards, RewardMix
    from art_trainer.training.run_setup import env_texts, prepare_policy
    from art_trainer.training.trainer import GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        given = {**changes, "seed": seed, "threads": 1, "output_dir": folder}
        settings = merge_settings([Layer("recipe", read_recipe("email")), Layer("benchmark", given)])
        run, config = settings.run, settings.config
        make_env = env_maker(run.env, {**run.env_args, **run.train_env_args})
        policy = prepare_policy(settings, lambda: env_texts(settings, make_env), checkpoint=None)
        if reward != BEFORE:
            judge = judge_of(reward, seed)
            paid = None if judge is None else JudgeRewards(RewardMix({"judge": 1.0}), {"judge": judge})
            trainer = GRPOTrainer(policy, make_env, config, reward=paid)
            while trainer.step < config.max_steps:
                trainer.update_policy(trainer.collect_episodes())
            trainer.close()
            if paid is not None:
                paid.close()
        policy.sampling = SamplingParams.for_evaluation(config)
        found = evaluate(policy, make_env, episodes=config.eval_episodes, seed=config.seed)
    return Outcome([bool(one.success) for one in found.results], [one.task_id for one in found.results])


def noise_of(reward: str) -> float | None:
    return float(reward.removeprefix(NOISY)) if reward.startswith(NOISY) else None


def final(outcomes: Sequence[Outcome]) -> Interval:
    """Success over all seeds."""
    return rate_interval([one for outcome in outcomes for one in outcome.success], np.random.default_rng(0))


def rise(before: Sequence[Outcome], after: Sequence[Outcome]) -> Interval:
    """The rise of success over the starts, drawing tasks again, not seeds."""
    tasks = [task for outcome in after for task in outcome.tasks]
    assert tasks == [task for outcome in before for task in outcome.tasks]
    first, second = ([float(x) for outcome in part for x in outcome.success] for part in (before, after))
    return paired_difference(first, second, np.random.default_rng(0), clusters=tasks)


def trend(done: Mapping[str, Sequence[Outcome]]) -> tuple[float, float] | None:
    """Kendall's tau-b of final success with noise over all trainings, and the chance of one as low by luck.

    The chance is that of a permutation test, whatever the distribution.
    """
    levels = {reward: level for reward in done if (level := noise_of(reward)) is not None}
    noise = [level for reward, level in levels.items() for _ in done[reward]]
    success = [outcome.level for reward in levels for outcome in done[reward]]
    tau = kendall_tau_b(noise, success)
    if tau is None:
        return None
    rng = np.random.default_rng(0)
    shuffled = (kendall_tau_b(noise, list(rng.permutation(success))) for _ in range(_SHUFFLES))
    as_low = sum(other is not None and other <= tau + 1e-12 for other in shuffled)
    return tau, (as_low + 1) / (_SHUFFLES + 1)


def failures_of(done: Mapping[str, Sequence[Outcome]], found: tuple[float, float] | None) -> list[str]:
    """The claims that do not hold, as text."""
    perfect = done.get(f"{NOISY}0")
    if perfect is None:
        return ["no training has a judge without noise"]
    rises = [rise([one], [other]) for one, other in zip(done[BEFORE], perfect, strict=True)]
    failures = [
        f"without noise success rose by {one.value:.3f} (low {one.low:.3f}), not by more than {RISE}"
        for one in rises
        if not (one.value > RISE and one.low > 0)
    ]
    if found is None or not (found[0] < 0 and found[1] < CHANCE):
        failures.append(f"success does not fall as noise grows: (tau, chance) is {found}")
    return failures


def plot(done: Mapping[str, Sequence[Outcome]]) -> str:
    """Final success over noise, a dot a seed, beside the other rewards as lines across."""
    noisy = {level: row for reward, row in done.items() if (level := noise_of(reward)) is not None}
    title, x = (
        "art-tiny on art/Email-v0, paid by a noisy judge",
        "share of the groups that the judge shuffles",
    )
    panel = Panel(title, x, "true success after training", (0.0, 1.0), (0.0, 1.0))
    blue, *others = COLORS
    for level, row in noisy.items():
        panel.interval(level, final(row).low, final(row).high, blue)
        panel.points([level] * len(row), [outcome.level for outcome in row], blue, opacity=0.5)
    panel.line(list(noisy), [final(row).value for row in noisy.values()], blue)
    flat = [(reward, final(row).value) for reward, row in done.items() if noise_of(reward) is None]
    lines = [(name, value, colour) for (name, value), colour in zip(flat, others, strict=False)]
    for _, value, colour in lines:
        panel.line((0.0, 1.0), (value, value), colour, dashed=True)
    panel.legend([("judge", blue), *((name, colour) for name, _, colour in lines)])
    return page([panel])


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="2 noise levels, 1 seed, 2 steps")
    harness.add_training_flags(parser, seeds=3)
    levels = ",".join(f"{p:g}" for p in NOISE)
    parser.add_argument("--noise", default=levels, help="shares of groups shuffled")
    others = ", ".join(REWARDS)
    parser.add_argument("--rewards", default=",".join(REWARDS), help=f"other rewards, of {others}")
    parser.add_argument("--steps", type=int, default=30, help="training steps")
    parser.add_argument("--episodes", type=int, default=256, help="held-out episodes of an evaluation")
    parser.add_argument("--difficulty", type=int, default=1, help="of the environment's questions")
    options = parser.parse_args()
    if options.quick:
        options.noise, options.rewards, options.seeds = "0,1", "rubric", 1
        options.steps, options.episodes = 2, 16
    chosen = [name for name in options.rewards.split(",") if name]
    if not set(chosen) <= set(REWARDS):
        parser.error(f"--rewards takes {others}, got {options.rewards}")
    rewards = [BEFORE, *chosen]
    rewards += [f"{NOISY}{p:g}" for p in sorted(float(p) for p in options.noise.split(",") if p)]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    changes = {"max_steps": options.steps, "eval_episodes": options.episodes}
    changes["env_args"] = {"difficulty": options.difficulty}
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.at_once, mp_context=spawn, max_tasks_per_child=1) as pool:
        pairs = [(reward, seed) for seed in seeds for reward in rewards]
        running = {pair: pool.submit(train, *pair, changes) for pair in pairs}
        for (reward, seed), training in running.items():
            print(f"{reward}, seed {seed}: {training.result().level:.4g}", flush=True)
    done = {reward: [running[reward, seed].result() for seed in seeds] for reward in rewards}
    lines = []
    for reward, row in done.items():
        figures = [number(final(row)), points(rise(done[BEFORE], row))]
        lines.append([reward, *figures, *(f"{outcome.level:.3f}" for outcome in row)])
    heads = ("reward", "success (95%)", "rise", *(f"seed {seed}" for seed in seeds))
    harness.show("True success on held-out tasks", heads, lines)
    found = trend(done)
    if found is not None:
        print(f"Kendall's tau-b of success with noise: {found[0]:+.2f}, by luck with chance {found[1]:.4f}")
    if options.plot:
        options.plot.write_text(plot(done))
    print(f"CPU-seconds in all: {harness.child_seconds():.0f}")
    outcomes = {reward: [asdict(outcome) for outcome in row] for reward, row in done.items()}
    last = ", ".join(f"{reward} {final(row).value:.3f}" for reward, row in done.items())
    return harness.finish(options, {"outcomes": outcomes}, failures_of(done, found), f"success: {last}")


if __name__ == "__main__":
    sys.exit(main())
