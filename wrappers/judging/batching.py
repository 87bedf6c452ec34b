"""Batches of attempts that fit into one question, and one scale for their scores.

Attempts that do not fit into one question are judged in batches. Two anchors, the best and the worst attempt
of the first batch, are shown in every later batch too; through their two scores in both, the later batch is
put on the first one's scale (linear linking through common items, as tests of different years are made
comparable: Kolen & Brennan, *Test Equating, Scaling, and Linking*, 2014, chapter 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from art_gym.wrappers.judging.base import JudgeFailedError, Score
from art_gym.wrappers.judging.prompt import GroupDigest, Section, estimated_tokens, shown

_MARKS = 40
"""Tokens that an attempt's marks take."""
_AT_ONCE = 3
"""A question holds at least so many attempts (or all there are): two anchors and one more."""
_LEAST = 60
"""Tokens of an attempt below which showing it tells nothing."""
_LEAST_SPREAD, _SLOPES = 0.1, (0.5, 2.0)
_VALUE = ""  # the value beside the parts, whose names are not empty


@dataclass(frozen=True, slots=True)
class Batches:
    """What fits into questions of some size.

    Attributes:
        shared: Name and text of what every question begins with.
        attempts: Each attempt's text.
        sizes: Each attempt's tokens, its marks included.
        room: Tokens for attempts in one question.
        most: Most attempts in one question, so that the answer fits too.
    """

    shared: tuple[tuple[str, str], ...]
    attempts: tuple[str, ...]
    sizes: tuple[int, ...]
    room: int
    most: int

    @property
    def longest(self) -> int:
        """Tokens of the material in the longest question, about."""
        shared = sum(estimated_tokens(text) + _MARKS for _, text in self.shared)
        return shared + min(sum(self.sizes), self.room)

    def batch(self, waiting: Sequence[int], anchors: Sequence[int] = ()) -> list[int]:
        """The anchors, and as many of the waiting attempts, in order, as fit beside them; at least one."""
        chosen, used = list(anchors), sum(self.sizes[place] for place in anchors)
        for place in waiting:
            full = len(chosen) >= self.most or used + self.sizes[place] > self.room
            if full and len(chosen) > len(anchors):
                break
            chosen.append(place)
            used += self.sizes[place]
        return sorted(chosen)


def plan_batches(digest: GroupDigest, room: int, most: int) -> Batches:
    """Fit a group's material into questions; what is too long is cut in the middle, with a note.

    What all attempts share gets at most half of the room. An attempt is cut only if it would not fit
    beside two others of its length.

    Args:
        digest: The group.
        room: Tokens for material in one question.
        most: Most attempts in one question.
    """
    shared = _shared(digest, room // 2)
    rest = room - sum(estimated_tokens(text) + _MARKS for _, text in shared)
    attempts = [shown(sections, rest) for sections in digest.attempts]
    if sum(estimated_tokens(text) + _MARKS for text in attempts) > rest:
        limit = rest // min(len(attempts), _AT_ONCE) - 2 * _MARKS  # once for the marks, once for the note
        if limit < _LEAST:
            raise JudgeFailedError(
                "too_long",
                f"{len(attempts)} attempts do not fit into a question with about {max(room, 0)} tokens for "
                "material: raise max_context_tokens, lower max_answer_tokens, or take another judge",
            )
        attempts = [shown(sections, limit) for sections in digest.attempts]
    sizes = tuple(estimated_tokens(text) + _MARKS for text in attempts)
    return Batches(shared, tuple(attempts), sizes, rest, max(most, _AT_ONCE))


def _shared(digest: GroupDigest, room: int) -> tuple[tuple[str, str], ...]:
    parts: list[tuple[str, tuple[Section, ...]]] = [("task", (digest.task,))]
    if digest.tools.text:
        parts.append(("tools", (digest.tools,)))
    if digest.shared:
        parts.append(("beginning, the same in all attempts", digest.shared))
    whole = [(name, shown(sections, room)) for name, sections in parts]
    if sum(estimated_tokens(text) for _, text in whole) <= room:
        return tuple(whole)
    return tuple((name, shown(sections, room // len(parts))) for name, sections in parts)


def anchors_of(scores: Mapping[int, Score]) -> tuple[int, int]:
    """The best and the worst of the attempts scored, for the widest base that a scale can have."""
    ranked = sorted(scores, key=lambda place: (scores[place].value, place))
    return ranked[-1], ranked[0]


def on_scale(scores: Mapping[int, Score], reference: Mapping[int, Score]) -> dict[int, Score]:
    """Put a batch's scores on the scale of the reference, through the attempts that both hold.

    Args:
        scores: A later batch's, by place.
        reference: The first batch's; two of its attempts, the anchors, are in ``scores`` too.
    """
    anchors = [place for place in scores if place in reference]
    here, there = ([_numbers(one[anchor]) for anchor in anchors] for one in (scores, reference))
    found = {}
    for place, score in scores.items():
        if place not in reference:
            linked = {
                name: _link(number, [one[name] for one in here], [one[name] for one in there])
                for name, number in _numbers(score).items()
                if all(name in one for one in (*here, *there))
            }
            found[place] = Score(linked.pop(_VALUE), score.explanation, linked)
    return found


def _numbers(score: Score) -> dict[str, float]:
    return {_VALUE: score.value, **score.parts}


def _link(value: float, here: Sequence[float], there: Sequence[float]) -> float:
    """``value`` on the straight line through the anchors' scores here and there, clamped to [0, 1].

    If they lie close together here, two noisy scores say nothing about a slope: then it is 1, and the
    line a shift. A slope is held between 0.5 and 2 for the same reason; the line then goes through the
    anchors' middle.
    """
    spread, slope = here[0] - here[-1], 1.0
    if abs(spread) >= _LEAST_SPREAD:
        slope = min(max((there[0] - there[-1]) / spread, _SLOPES[0]), _SLOPES[1])
    linked = sum(there) / len(there) + slope * (value - sum(here) / len(here))
    return min(max(linked, 0.0), 1.0)
