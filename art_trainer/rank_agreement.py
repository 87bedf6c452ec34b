"""How far two rankings of one group agree: a judge's scores against a reward that is trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The rank correlation of two lists, with a correction for ties.

    ``(concordant - discordant) / sqrt(pairs untied in first * pairs untied in second)``: 1 for the same
    order, -1 for the reverse, 0 where neither order tells anything of the other.

    Source: M. G. Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945), pp. 239-251.

    Args:
        first: A number an attempt.
        second: A number an attempt, in the same order.

    Returns:
        The correlation in [-1, 1]; ``None`` where one of the two ranks nothing, since all are equal.

    Raises:
        ValueError: Where they are not equally long, or hold what is no number.
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

    A judge that scores all attempts alike has said nothing, which counts 0. A group whose trusted rewards are
    all alike has no order to be found: ``None``.

    Args:
        scores: What the judge gave each attempt.
        trusted: What each attempt is worth.

    Raises:
        ValueError: As for :func:`kendall_tau_b`.
    """
    tau = kendall_tau_b(scores, trusted)
    if tau is None and len(set(trusted)) > 1:
        return 0.0
    return tau


def top_agreement(scores: Sequence[float], trusted: Sequence[float]) -> float | None:
    """The probability that the judge's best attempt is among the truly best; it tosses among equals.

    Returns:
        A probability; ``None`` where the trusted rewards are all alike, and every attempt is the best.

    Raises:
        ValueError: Where the two are not equally long.
    """
    if len(scores) != len(trusted):
        raise ValueError(f"rankings of one group are equally long, got {len(scores)} and {len(trusted)}")
    if len(set(trusted)) < 2:
        return None
    best, favourite = max(trusted), max(scores)
    favoured = [truth for score, truth in zip(scores, trusted, strict=True) if score == favourite]
    return sum(truth == best for truth in favoured) / len(favoured)


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
        A share; ``None`` where all succeeded, or none.

    Raises:
        ValueError: Where the two are not equally long.
    """
    if len(scores) != len(successes):
        raise ValueError(f"rankings of one group are equally long, got {len(scores)} and {len(successes)}")
    good = [score for score, success in zip(scores, successes, strict=True) if success]
    bad = [score for score, success in zip(scores, successes, strict=True) if not success]
    if not good or not bad:
        return None
    return sum((one > other) + 0.5 * (one == other) for one in good for other in bad) / (len(good) * len(bad))


def misranked(scores: Sequence[float], trusted: Sequence[float]) -> list[tuple[int, int]]:
    """The pairs that the judge ranks the wrong way round: (the better attempt, the one it scored higher)."""
    places = range(len(scores))
    return [
        (better, worse)
        for better in places
        for worse in places
        if trusted[better] > trusted[worse] and scores[better] < scores[worse]
    ]


def place_slope(by_place: Sequence[float]) -> float:
    """How much a score changes from the first place shown to the last, by a straight line of least squares.

    Args:
        by_place: For each place, at least two, how far scores lie there above the average.

    Raises:
        ValueError: For fewer than two places.
    """
    if len(by_place) < 2:
        raise ValueError(f"a slope needs at least two places, got {len(by_place)}")
    place_N = np.linspace(-0.5, 0.5, len(by_place))
    return float(place_N @ np.asarray(by_place, dtype=np.float64) / (place_N @ place_N))


def _pair_signs(values: Sequence[float]) -> np.ndarray:
    """For every ordered pair of places whether the second is larger (1), smaller (-1) or equal (0)."""
    array_N = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array_N).all():
        raise ValueError(f"a ranking is of finite numbers, got {list(values)}")
    # Compared, not subtracted: a difference of tiny numbers can round to 0.
    larger_N_N = (array_N[None, :] > array_N[:, None]).astype(np.int64)
    signs_N_N: np.ndarray = larger_N_N - larger_N_N.T
    return signs_N_N
