"""Intervals for what an evaluation measures: how far a number could be off by the luck of the tasks drawn.

Rates get a score interval, which holds where the normal one fails: near 0, near 1, and with few episodes.
Episodes of one task are alike, so they count as fewer. Everything else gets a bootstrap over tasks: whole
tasks are drawn again, not single episodes. Of fewer than 20 tasks it would be too narrow; they get Student's
interval.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from art_trainer.types import Interval

LEVEL = 0.95
"""The share of intervals that cover the truth, over many experiments."""

_STUDENT = (
    *(math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262),
    *(2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101),
)
"""The 97.5% points of Student's distribution with 0, 1, 2, … degrees of freedom."""
_NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
_RESAMPLES = 10_000
_CHUNK = 500
_LARGEST_EXACT = 20_000  # reach of the sums whose distribution is reckoned instead of drawn


def wilson_interval(successes: float, count: float) -> Interval:
    """The score interval of a proportion.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22
    (1927), pp. 209-212; recommended for small counts by Brown, Cai and DasGupta, Statistical Science 16
    (2001), pp. 101-133.

    Raises:
        ValueError: If there are no trials, or more successes than trials.
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(
            f"a proportion needs 0 <= successes <= count and count >= 1, got {successes}/{count}"
        )
    z, rate = _NORMAL, successes / count
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    # At 0 and 1 one end is the rate itself; rounding would move it.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == count else centre + half
    return Interval(rate, low, high, int(count))


def clustered_rate_interval(rate: float, trials: int, spread: float, clusters: int) -> Interval:
    """The score interval of a rate, for as many independent trials as clustered ones amount to.

    The count of trials is divided by the design effect, the variance between clusters over a binomial's, and
    by a factor for few clusters: Student's quantile over the normal one, squared.

    Source: L. Kish, "Survey Sampling" (1965), section 5.4; E. Korn and B. Graubard, "Confidence intervals for
    proportions with small expected number of positive counts", Survey Methodology 24 (1998), pp. 193-201.

    Args:
        rate: The share of successes.
        trials: How many there were.
        spread: The sum over clusters of ``(successes - rate * size) ** 2``.
        clusters: How many clusters; of one alone nothing is known of the spread, so it is one trial.
    """
    binomial, count = trials * rate * (1 - rate), max(1.0, clusters)
    if binomial and clusters > 1:
        few = 1 + (_NORMAL**2 + 1) / (4 * (clusters - 1))  # Student's over the normal one, roughly
        if clusters <= len(_STUDENT):
            few = _STUDENT[clusters - 1] / _NORMAL
        unlike = spread * clusters / (clusters - 1) * few**2
        count = max(1.0, trials * binomial / max(unlike, binomial))
    return replace(wilson_interval(rate * count, count), count=trials)


def mean_interval(
    values: Sequence[float], clusters: Sequence[Hashable], rng: np.random.Generator
) -> Interval:
    """The percentile bootstrap interval of a mean, drawing whole clusters again; Student's of few clusters.

    Source: B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 8 and 13. Of fewer
    than 20 clusters: the mean and Student's quantile times the standard error of a ratio of sums over them
    (W. Cochran, "Sampling Techniques" (1977), chapter 6). One cluster says nothing about the spread
    between clusters: both ends are then NaN.

    Args:
        values: One value per episode.
        clusters: What belongs together (the task of each episode).
        rng: Draws the resamples.

    Raises:
        ValueError: If there are no values, or not one cluster label per value.
    """
    if len(values) == 0:
        raise ValueError("a mean needs at least one value, got none")
    if len(clusters) != len(values):
        raise ValueError(
            f"each value needs one cluster, got {len(values)} values and {len(clusters)} clusters"
        )
    mean, sums, sizes = _by_cluster(values, clusters)
    count = len(sums)
    if count <= len(_STUDENT):
        spread = float(np.square(sums - mean * sizes).sum()) * count / max(1, count - 1)
        half = _STUDENT[count - 1] * math.sqrt(spread) / len(values)
        return Interval(mean, mean - half, mean + half, len(values))
    tail = (1 - LEVEL) / 2
    even = np.full(count, 1 / count)
    means = []
    for _ in range(_RESAMPLES // _CHUNK):  # in chunks, so that memory stays bounded
        times = rng.multinomial(count, even, size=_CHUNK)
        means.append((times @ sums) / (times @ sizes))
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(mean, float(low), float(high), len(values))


def _by_cluster(values: Sequence[float], labels: Sequence[Hashable]) -> tuple[float, np.ndarray, np.ndarray]:
    """The mean of all values, and by cluster their sum and number."""
    index: dict[Hashable, int] = {}
    members = np.array([index.setdefault(label, len(index)) for label in labels])
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), np.bincount(members, weights=array), np.bincount(members)


def rate_interval(
    values: Sequence[float], clusters: Sequence[Hashable], rng: np.random.Generator
) -> Interval:
    """The interval of a rate whose trials may belong together, as several attempts at one task do.

    Where every task says one thing (one trial each, or as many trials all of one outcome), the tasks are the
    trials. Else see :func:`clustered_rate_interval`; of probabilities and of a single task,
    :func:`mean_interval`. Arguments as there; a value is 0, 1 or a probability.

    Raises:
        ValueError: If there are no values, or not one cluster label per value.
    """
    tasks = set(clusters)
    if len(clusters) != len(values) or len(tasks) < 2 or not set(values) <= {0, 1}:
        return mean_interval(values, clusters, rng).within(0.0, 1.0)
    rate, sums, sizes = _by_cluster(values, clusters)
    if len(set(sizes)) == 1 and set(sums) <= {0, sizes[0]}:
        return replace(wilson_interval(sum(sums) / sizes[0], len(tasks)), count=len(values))
    return clustered_rate_interval(rate, len(values), float(np.square(sums - rate * sizes).sum()), len(sums))


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The probability that at least one of k attempts, drawn from n with c successes, succeeded.

    Its mean over tasks is an unbiased estimate of the share of tasks that k attempts solve, where ``1 - (1 -
    successes / attempts) ** k`` is not.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, equation 1:
    ``1 - C(n - c, k) / C(n, k)``, as the product that does not overflow.

    Raises:
        ValueError: Unless ``0 <= successes <= attempts`` and ``1 <= k <= attempts``.
    """
    if not 0 <= successes <= attempts or not 1 <= k <= attempts:
        raise ValueError(
            "pass@k needs 0 <= successes <= attempts and 1 <= k <= attempts, got "
            f"attempts={attempts}, successes={successes}, k={k}"
        )
    if attempts - successes < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(attempts - successes + 1, attempts + 1))


def paired_difference(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Hashable], rng: np.random.Generator
) -> Interval:
    """The mean of ``second - first`` over pairs that met the same start, with its interval.

    Successes and failures (only 0 and 1) that are one pair a task, or the same difference everywhere, get
    Newcombe's interval over tasks, everything else a bootstrap over tasks. The bootstrap alone would call 4
    wins of 4 certain. Arguments as in :func:`mean_interval`, both in the same order of starts.

    Raises:
        ValueError: If the two are not equally long, or empty.
    """
    if len(first) != len(second):
        raise ValueError(f"pairs need equally many values, got {len(first)} and {len(second)}")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    once = dict(zip(clusters, zip(first, second, strict=True), strict=True))
    alike = len(once) == len(clusters) or len(set(differences)) == 1
    if once and alike and {*first, *second} <= {0, 1}:
        tasks = list(once.values())
        return newcombe_paired([bool(a) for a, _ in tasks], [bool(b) for _, b in tasks])
    found = mean_interval(differences, clusters, rng)
    return found.within(-1.0, 1.0) if {*first, *second} <= {0, 1} else found


def newcombe_paired(first: Sequence[bool], second: Sequence[bool]) -> Interval:
    """The score interval of the difference of two paired proportions, second minus first.

    Source: R. G. Newcombe, "Improved confidence intervals for the difference between binomial proportions
    based on paired data", Statistics in Medicine 17 (1998), pp. 2635-2650, method 10.

    Raises:
        ValueError: If the two are not equally long, or empty.
    """
    pairs = list(zip(second, first, strict=True))
    both, only_second = pairs.count((True, True)), pairs.count((True, False))
    only_first, neither = pairs.count((False, True)), pairs.count((False, False))
    rate_b = wilson_interval(both + only_second, len(pairs))
    rate_a = wilson_interval(both + only_first, len(pairs))
    margins = (both + only_second) * (only_first + neither) * (both + only_first) * (only_second + neither)
    product: float = both * neither - only_second * only_first
    if product > 0:  # Newcombe's correction for continuity
        product = max(product - len(pairs) / 2, 0)
    phi = product / math.sqrt(margins) if margins else 0.0
    below_b, above_b = rate_b.value - rate_b.low, rate_b.high - rate_b.value
    below_a, above_a = rate_a.value - rate_a.low, rate_a.high - rate_a.value
    value = rate_b.value - rate_a.value
    low = value - math.sqrt(below_b**2 - 2 * phi * below_b * above_a + above_a**2)
    high = value + math.sqrt(above_b**2 - 2 * phi * above_b * below_a + below_a**2)
    return Interval(value, low, high, len(pairs)).within(-1.0, 1.0)


def paired_p_value(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Hashable], rng: np.random.Generator
) -> float:
    """How likely a mean difference at least this large is where it is a coin toss which policy is which.

    Whole tasks are swapped between the two policies. Successes, and whatever else are whole numbers, get the
    exact distribution; with one pair a task that is McNemar's exact test. Everything else gets
    :data:`_RESAMPLES` random swaps, the one seen among them.

    Source: R. A. Fisher, "The Design of Experiments" (1935), section 21; B. Phipson and G. K. Smyth,
    "Permutation p-values should never be zero", Stat. Appl. Genet. Mol. Biol. 9 (2010), article 39.

    Returns:
        The two-sided p-value, in (0, 1]; 2.2e-308, the smallest normal number, for whatever is below.

    Raises:
        ValueError: If the two are not equally long, or not one cluster label per pair.
    """
    sums: dict[Hashable, float] = {}
    for label, a, b in zip(clusters, first, second, strict=True):
        sums[label] = sums.get(label, 0.0) + (b - a)
    moved = np.array([value for value in sums.values() if value], dtype=np.float64)
    if len(moved) == 0:
        return 1.0
    if np.all(moved == np.round(moved)) and np.abs(moved).sum() <= _LARGEST_EXACT:
        reach = int(np.abs(moved).sum())
        chances = np.zeros(2 * reach + 1)  # of each sum that can be reached
        chances[reach] = 1.0
        for size in np.abs(moved).astype(np.int64):
            chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2
        tail = chances[np.abs(np.arange(-reach, reach + 1)) >= abs(moved.sum())].sum()
        return min(1.0, max(float(tail), sys.float_info.min))
    seen = abs(moved.sum())
    at_least = 0
    for _ in range(_RESAMPLES // _CHUNK):
        signs = rng.integers(0, 2, size=(_CHUNK, len(moved))) * 2 - 1
        # Rounding must not make an arrangement that is as uneven look less so.
        at_least += int(np.sum(np.abs(signs @ moved) >= seen * (1 - 1e-9)))
    return (at_least + 1) / (_RESAMPLES + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for how many they are, so that one false alarm in all has the level's probability.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979), pp. 65-70.

    Returns:
        The adjusted p-values, in the order given.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
