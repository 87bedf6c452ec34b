"""Which part of the reward brought its rise, and how much of that success explains."""

from __future__ import annotations

from art_trainer.analysis.collecting import TERM, Collected
from art_trainer.analysis.results import TermGain
from art_trainer.analysis.trends import ends_of
from art_trainer.analysis.windows import REWARD, Window

_NEGLIGIBLE = 1e-9


def term_gains(collected: Collected) -> tuple[TermGain, ...]:
    """The reward and each of its parts at the beginning and at the end of training, the reward first.

    What success explains of a part's change is the change of the success rate times what the part pays more
    in successful episodes than in others of the same stretch of steps. Where no episode is on record that
    cannot be told: a rise of success then explains everything, and anything else nothing.
    """
    windows = [window for _, window in collected.windows.items() if window.episodes]
    whole = collected.whole()
    total = _ends(collected, REWARD)
    if total is None:
        return ()
    success = _ends(collected, "success")
    rise = 0.0 if success is None else success[1] - success[0]

    def gain(name: str) -> TermGain | None:
        found = total if name == REWARD else _ends(collected, TERM + name)
        if found is None:
            return None
        early, late = found
        unknown = late - early if rise > 0 else 0.0
        return TermGain(
            name=name,
            early=early,
            late=late,
            explained=rise * premium(windows, name) if windows else unknown,
            share=(late - early) / (total[1] - total[0]) if abs(total[1] - total[0]) > _NEGLIGIBLE else None,
            penalty=name != REWARD and _never_pays(collected, whole, name),
        )

    parts = [found for name in collected.term_names() if (found := gain(name)) is not None]
    first = gain(REWARD)
    assert first is not None
    return (first, *sorted(parts, key=lambda part: -part.change))


def premium(windows: list[Window], name: str) -> float:
    """What a part of the reward pays more with success than without, inside each stretch of steps."""
    weights = total = 0.0
    for window in windows:
        won, lost = window.successes, window.episodes - window.successes
        if won and lost:
            # Weighed as in a regression on success with an intercept for each stretch.
            weight = won * lost / window.episodes
            total += weight * (_mean(window, name, won=True) - _mean(window, name, won=False))
            weights += weight
    return total / weights if weights else 0.0


def _mean(window: Window, name: str, *, won: bool) -> float:
    held = (window.won if won else window.lost).get(name)
    count = window.successes if won else window.episodes - window.successes
    return held.mean * held.count / count if held is not None else 0.0


def _ends(collected: Collected, name: str) -> tuple[float, float] | None:
    curve = collected.curve(name)
    return None if curve is None else ends_of(curve.values)


def _never_pays(collected: Collected, whole: Window, name: str) -> bool:
    if name in whole.terms:
        return whole.terms[name].highest <= 0
    curve = collected.curve(TERM + name)
    return curve is not None and max(curve.values) <= 0
