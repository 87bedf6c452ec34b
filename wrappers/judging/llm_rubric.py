"""The rubric that serves where nobody wrote one."""

from __future__ import annotations

from art_gym.wrappers.judging.rubrics import Criterion, Rubric

RULER_RUBRIC = Rubric(
    (
        Criterion(
            "quality",
            1.0,
            "How far the attempt got towards what the task asks for, and how directly it got there.",
        ),
    ),
    guidance=(
        "Reaching the goal counts far more than anything else: an attempt that reached it scores well above "
        "every attempt that did not, however tidy that one was. Among attempts that got equally far, the one "
        "that wasted less effort is a little better. An attempt that got part of the way earns part of the "
        "score. Let the gap between two scores show how much better the one attempt is: near equals lie "
        "close together, a clear difference is a wide gap."
    ),
)
"""RULER's idea (OpenPipe, "RULER: Relative Universal LLM-Elicited Rewards", 2025) in our own words."""
