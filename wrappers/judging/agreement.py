"""How far two rankings of one group agree: a judge's scores and the environment's rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The rank correlation of two lists, with a correction for ties.

    ``(concordant - discordant) / sqrt(pairs untied in first * pairs untied in second)``: 1 for the same
    order, -1 for the reverse, 0 if the orders are unrelated.

    Source: M. G. Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945), pp. 239-251.

    Args:
        first: A number an attempt.
        second: A number an attempt, in the same order.

    Returns:
        The correlation in [-1, 1]; ``None`` if one of the two ranks nothing, since all are equal.

    Raises:
        ValueError: If they are not equally long, or a number is not finite.
    """
    one_N_N, other_N_N = _pair_signs(first), _pair_signs(second)
    if one_N_N.shape != other_N_N.shape:
        raise ValueError(f"rankings of one group are equally long, got {len(first)} and {len(second)}")
    untied = math.sqrt(float(np.abs(one_N_N).sum()) * float(np.abs(other_N_N).sum()))
    if untied == 0:
        return None
    return min(1.0, max(-1.0, float((one_N_N * other_N_N).sum()) / untied))


def judged_tau(scores: Sequence[float], trusted: Sequence[float]) -> float | None:
    """Kendall's tau-b of a judge's scores with a trusted reward.

    A judge that scores all attempts equally counts 0. A group whose trusted rewards are
    all alike has no order to be found: ``None``.
    """
    tau = kendall_tau_b(scores, trusted)
    return 0.0 if tau is None and len(set(trusted)) > 1 else tau


def top_agreement(scores: Sequence[float], trusted: Sequence[float]) -> float | None:
    """The probability that the judge's best attempt is among the truly best; it tosses among equals.

    ``None`` if the trusted rewards are all alike, and every attempt is the best.
    """
    pairs = list(zip(scores, trusted, strict=True))
    if len(set(trusted)) < 2:
        return None
    favoured = [truth for score, truth in pairs if score == max(scores)]
    return favoured.count(max(trusted)) / len(favoured)


def top_chance(trusted: Sequence[float]) -> float | None:
    """What :func:`top_agreement` is for a judge that tosses among all attempts."""
    return top_agreement([0.0] * len(trusted), trusted)


def success_above_failure(scores: Sequence[float], successes: Sequence[bool]) -> float | None:
    """The share of pairs of a success and a failure in which the success scores higher; a draw is half.

    0.5 is chance. Against success, tau-b would stay below 1 even for a judge without fault, since a judge may
    well rank one success above another.

    Source: H. B. Mann and D. R. Whitney, "On a test of whether one of two random variables is stochastically
    larger than the other", Annals of Mathematical Statistics 18 (1947), pp. 50-60: U over the number of
    pairs, which is the area under the ROC curve.

    Returns:
        A share; ``None`` if all succeeded, or none.
    """
    pairs = list(zip(scores, successes, strict=True))
    good, bad = [[score for score, success in pairs if success is one] for one in (True, False)]
    wins = [(one > other) + 0.5 * (one == other) for one, other in product(good, bad)]
    return sum(wins) / len(wins) if wins else None


def _pair_signs(values: Sequence[float]) -> np.ndarray:
    """For every ordered pair of places whether the second is larger (1), smaller (-1) or equal (0)."""
    array_N = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array_N).all():
        raise ValueError(f"a ranking is of finite numbers, got {list(values)}")
    # Compared, not subtracted: a difference of tiny numbers can round to 0.
    larger_N_N = (array_N > array_N[:, None]).astype(np.int64)
    signs_N_N: np.ndarray = larger_N_N - larger_N_N.T
    return signs_N_N
