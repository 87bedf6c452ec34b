"""What is training worth under a judge that is wrong by a known amount, and under a rubric?

Each cell is one training of art-tiny by GRPO on the embedded mailbox, with the settings of the recipe `email`
but fewer steps; what it pays is the environment's own reward, the rubric's score (with and without the facts
that tell what was right), or the score of a judge that ranks by the true reward and shuffles a share of the
groups (`benchmarks/noisy_judge.py`). What is measured is always true success on held-out tasks,
before and after.
The 95% intervals are over tasks; the luck of training shows between the seeds.

    python benchmarks/judge_noise.py --json noise.json         # 9 rewards, 3 seeds; resumes
    python benchmarks/judge_noise.py --json noise.json --plot noise.svg --at-once 2
    python benchmarks/judge_noise.py --noise 0,1 --rewards ""  # some of them
    python benchmarks/judge_noise.py --check                   # exits 1 if the claim does not hold
    python benchmarks/judge_noise.py --quick                   # one seed, 2 steps: shows that it runs
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import harness
import numpy as np
from charts import COLORS, Panel, page
from noisy_judge import NoisyJudge
from trainings import BEFORE, Cell, Row, Task, row_of, run_cells

from art_gym.wrappers.judging import Judge, RubricJudge
from art_gym.wrappers.judging.agreement import kendall_tau_b
from art_trainer.analysis.judge_evaluation import blind_judge

NOISE = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
NOISY = "noisy:"
REWARDS = ("env", "rubric", "rubric-without-facts")

RISE = 0.5
"""The claim: with a judge that is never wrong, success rises by more than this in every seed."""
CHANCE = 0.05
"""The claim: a fall of success with noise like the one measured has a smaller chance of being luck."""
_SHUFFLES = 10_000


def judge_of(cell: Cell) -> Judge | None:
    """Who pays in this cell; nobody but the environment for `env`."""
    if cell.way == "env":
        return None
    if cell.way == "rubric":
        return RubricJudge()
    if cell.way == "rubric-without-facts":
        return blind_judge(RubricJudge())
    return NoisyJudge(float(cell.way.removeprefix(NOISY)), cell.seed)


def noise_of(row: Row) -> float | None:
    return float(row.way.removeprefix(NOISY)) if row.way.startswith(NOISY) else None


def trend(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Kendall's tau-b of final success with noise over all cells, and the chance of one as low by luck.

    The chance is that of a permutation test, whatever the distribution.
    """
    noisy = [
        (level, success) for row in rows if (level := noise_of(row)) is not None for success in row.by_seed
    ]
    noise, success = [p for p, _ in noisy], [s for _, s in noisy]
    tau = kendall_tau_b(noise, success)
    if tau is None:
        return None
    rng = np.random.default_rng(0)
    shuffled = (kendall_tau_b(noise, list(rng.permutation(success))) for _ in range(_SHUFFLES))
    as_low = sum(other is not None and other <= tau + 1e-12 for other in shuffled)
    return tau, (as_low + 1) / (_SHUFFLES + 1)


def failures_of(rows: Sequence[Row], found: tuple[float, float] | None) -> list[str]:
    """The claims that do not hold, as text."""
    perfect = next((row for row in rows if noise_of(row) == 0), None)
    if perfect is None:
        return ["no cell has a judge without noise"]
    failures = [
        f"without noise success rose by {rise.value:.3f} (low {rise.low:.3f}), not by more than {RISE}"
        for rise in perfect.rises
        if not (rise.value > RISE and rise.low > 0)
    ]
    if found is None or not (found[0] < 0 and found[1] < CHANCE):
        failures.append(f"success does not fall as noise grows: (tau, chance) is {found}")
    return failures


def plot(rows: Sequence[Row], before: float) -> str:
    """Final success over noise, a dot a seed, beside the other rewards as lines across."""
    noisy = {level: row for row in rows if (level := noise_of(row)) is not None}
    title, x = (
        "art-tiny on art/Email-v0, paid by a noisy judge",
        "share of the groups that the judge shuffles",
    )
    panel = Panel(title, x, "true success after training", (0.0, 1.0), (0.0, 1.0))
    blue, *others = COLORS
    for level, row in noisy.items():
        panel.interval(level, row.final.low, row.final.high, blue)
        panel.points([level] * len(row.by_seed), row.by_seed, blue, opacity=0.5)
    panel.line(list(noisy), [row.final.value for row in noisy.values()], blue)
    flat = [(BEFORE, before)] + [(row.way, row.final.value) for row in rows if noise_of(row) is None]
    lines = [(name, value, colour) for (name, value), colour in zip(flat, others, strict=False)]
    for _, value, colour in lines:
        panel.line((0.0, 1.0), (value, value), colour, dashed=True)
    panel.legend([("judge", blue), *((name, colour) for name, _, colour in lines)])
    return page([panel])


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="2 noise levels, 1 seed, 2 steps")
    harness.add_training_flags(parser, seeds=3)
    parser.add_argument(
        "--noise", default=",".join(f"{p:g}" for p in NOISE), help="shares of groups shuffled"
    )
    parser.add_argument(
        "--rewards", default=",".join(REWARDS), help=f"other rewards, of {', '.join(REWARDS)}"
    )
    parser.add_argument("--steps", type=int, default=30, help="training steps")
    parser.add_argument("--episodes", type=int, default=256, help="held-out episodes of an evaluation")
    parser.add_argument("--difficulty", type=int, default=1, help="of the environment's questions")
    options = parser.parse_args()
    if options.quick:
        options.noise, options.rewards, options.seeds, options.steps, options.episodes = (
            "0,1",
            "rubric",
            1,
            2,
            16,
        )
    rewards = [name for name in options.rewards.split(",") if name]
    if not set(rewards) <= set(REWARDS):
        parser.error(f"--rewards takes {', '.join(REWARDS)}, got {options.rewards}")
    rewards += [f"{NOISY}{p:g}" for p in sorted(float(p) for p in options.noise.split(",") if p)]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    changes = {"env_args": {"difficulty": options.difficulty}}
    tasks = {"email": Task("email", "success", options.steps, options.episodes, changes)}
    cells = [Cell("email", reward, seed) for seed in seeds for reward in (BEFORE, *rewards)]
    done = run_cells(cells, tasks, at_once=options.at_once, file=options.json, judge_of=judge_of)
    rows = [row_of("email", reward, seeds, done) for reward in rewards]
    before = [done[Cell("email", BEFORE, seed)].level for seed in seeds]
    lines = [[BEFORE, f"{np.mean(before):.3f}", "", *(f"{level:.3f}" for level in before)]]
    for row in rows:
        ends = f"{row.final.value:.3f} [{row.final.low:.3f}, {row.final.high:.3f}]"
        rise = f"{100 * row.rise.value:+.1f} [{100 * row.rise.low:+.1f}, {100 * row.rise.high:+.1f}]"
        lines.append([row.way, ends, rise, *(f"{level:.3f}" for level in row.by_seed)])
    heads = ("reward", "success [95%]", "rise [95%], points", *(f"seed {seed}" for seed in seeds))
    harness.show("True success on held-out tasks", heads, lines)
    found = trend(rows)
    if found is not None:
        print(f"Kendall's tau-b of success with noise: {found[0]:+.2f}, by luck with chance {found[1]:.4f}")
    if options.plot:
        options.plot.write_text(plot(rows, float(np.mean(before))))
    print(f"CPU-seconds in all: {harness.child_seconds():.0f}")
    options.json = None  # it holds the cells
    figures = ", ".join(f"{row.way} {row.final.value:.3f}" for row in rows)
    last = f"success {np.mean(before):.3f} -> {figures}"
    return harness.finish(options, {}, failures_of(rows, found), last)


if __name__ == "__main__":
    sys.exit(main())
