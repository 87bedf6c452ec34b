"""Signs that a run has stopped to learn or is breaking: nobody cheats, but somebody should look."""

from __future__ import annotations

from art_trainer.analysis.evidence import Evidence
from art_trainer.analysis.results import Confidence, Sign
from art_trainer.analysis.signs import capped, graded, went

_SHORT = "it was not measured, or over too few steps (6 are needed)"


def standstill_signs(evidence: Evidence) -> list[Sign]:
    """All signs of a run that has stopped to learn or is breaking."""
    return [
        entropy_collapse(evidence),
        flat_groups(evidence),
        rising_share(
            evidence, "invalid_actions", "Invalid replies rise", "replies without a valid call", (2, 5, 15)
        ),
        rising_share(
            evidence, "cut_off", "More episodes are cut off", "episodes that a limit ended", (5, 10, 25)
        ),
    ]


def entropy_collapse(evidence: Evidence) -> Sign:
    """Whether the policy has stopped to try anything."""
    entropy = evidence.change("entropy")
    numbers: dict[str, float] = {}
    if entropy is None or entropy.early <= 0:
        confidence, words = Confidence.UNKNOWN, _SHORT
    else:
        left = max(0.0, entropy.late / entropy.early)
        numbers = {"left": left, "late": entropy.late}
        words = f"entropy went {went(entropy)} nats a token: {100 * left:.0f}% is left"
        confidence = Confidence.NONE
        if entropy.falls:
            confidence = graded(-left, -0.25, -0.1, -0.03)
            if evidence.solved:
                confidence = capped(confidence, Confidence.POSSIBLE)
    return Sign(
        "entropy_collapse",
        "Entropy collapses",
        confidence,
        words,
        "25% (possible), 10% (likely) or 3% (strong) of the early entropy is left; at most possible where "
        "nearly every attempt succeeds",
        False,
        numbers,
    )


def flat_groups(evidence: Evidence) -> Sign:
    """Whether the attempts of a group all earn the same, so that nothing can be learned from them."""
    flat = evidence.change("frac_reward_zero_std")
    numbers: dict[str, float] = {}
    if flat is None:
        confidence, words = Confidence.UNKNOWN, _SHORT
    else:
        numbers = {"early": flat.early, "late": flat.late}
        words = (
            f"groups whose attempts all earn the same went from {100 * flat.early:.0f}% to "
            f"{100 * flat.late:.0f}%"
        )
        confidence = graded(flat.late, 0.5, 0.75, 0.9)
        if evidence.solved:
            confidence, words = Confidence.NONE, f"{words}; nearly all succeed"
    return Sign(
        "flat_groups",
        "Rewards within groups are all the same",
        confidence,
        words,
        "50% (possible), 75% (likely) or 90% (strong) of the late groups, where not nearly all succeed",
        False,
        numbers,
    )


def rising_share(
    evidence: Evidence, curve: str, title: str, what: str, points: tuple[float, float, float]
) -> Sign:
    """Whether a share that should fall rises.

    Args:
        evidence: The run.
        curve: The share's curve.
        title: The sign's name for readers.
        what: What it is a share of, in words.
        points: The rise in points that makes it possible, likely and strong.
    """
    change = evidence.change(curve)
    numbers: dict[str, float] = {}
    if change is None:
        confidence, words = Confidence.UNKNOWN, _SHORT
    else:
        rise = 100 * change.difference.value
        numbers = {"early": change.early, "late": change.late}
        words = f"{what} went from {100 * change.early:.1f}% to {100 * change.late:.1f}% ({rise:+.1f} points)"
        confidence = graded(rise, *points) if change.rises else Confidence.NONE
    return Sign(
        f"rising_{curve}",
        title,
        confidence,
        words,
        f"a rise by {points[0]:g} (possible), {points[1]:g} (likely) or {points[2]:g} points (strong)",
        False,
        numbers,
    )
