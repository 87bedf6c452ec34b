"""Groups longer than what a judge can read: what is cut, what is judged together, and on which scale.

Attempts that do not fit into one question are judged in blocks. Two anchors, the best and the worst attempt
of the first block, are shown in every later block too; through their two scores there and here the later
block is put on the first one's scale (linear linking through common items, as tests of different years are
made comparable: Kolen & Brennan, *Test Equating, Scaling, and Linking*, 2014, chapter 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from art_gym.wrappers.judging.errors import JudgeFailed
from art_gym.wrappers.judging.llm_material import Material
from art_gym.wrappers.judging.llm_text import Section, estimated_tokens, shown
from art_gym.wrappers.judging.rubrics import Score

_MARKS = 40
"""Tokens that an attempt's marks take."""
_AT_ONCE = 3
"""A question holds at least so many attempts (or all there are): two anchors and one more."""
_LEAST = 60
"""Tokens of an attempt below which showing it tells nothing."""
_LEAST_SPREAD, _SLOPES = 0.1, (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Layout:
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

    def block(self, waiting: Sequence[int], anchors: Sequence[int] = ()) -> list[int]:
        """The anchors, and as many of the waiting attempts, in order, as fit beside them; at least one."""
        chosen, used = list(anchors), sum(self.sizes[place] for place in anchors)
        for place in waiting:
            full = len(chosen) >= self.most or used + self.sizes[place] > self.room
            if full and len(chosen) > len(anchors):
                break
            chosen.append(place)
            used += self.sizes[place]
        return sorted(chosen)


def lay_out(material: Material, room: int, most: int) -> Layout:
    """Fit a group's material into questions; what is too long is cut in the middle, with a note.

    What all attempts share gets at most half of the room. An attempt is cut only where it would not fit
    beside two others of its length.

    Args:
        material: The group.
        room: Tokens for material in one question.
        most: Most attempts in one question.

    Raises:
        JudgeFailed: With reason ``"too_long"``, where hardly anything of the attempts would be left.
    """
    shared = _shared(material, room // 2)
    rest = room - sum(estimated_tokens(text) + _MARKS for _, text in shared)
    attempts = [shown(sections, rest) for sections in material.attempts]
    if sum(estimated_tokens(text) + _MARKS for text in attempts) > rest:
        limit = rest // min(len(attempts), _AT_ONCE) - 2 * _MARKS  # once for the marks, once for the note
        if limit < _LEAST:
            raise JudgeFailed(
                "too_long",
                f"{len(attempts)} attempts do not fit into a question with about {max(room, 0)} tokens for "
                "material: raise max_context_tokens, lower max_answer_tokens, or take another judge",
            )
        attempts = [shown(sections, limit) for sections in material.attempts]
    sizes = tuple(estimated_tokens(text) + _MARKS for text in attempts)
    return Layout(shared, tuple(attempts), sizes, rest, max(most, _AT_ONCE))


def _shared(material: Material, room: int) -> tuple[tuple[str, str], ...]:
    parts: list[tuple[str, tuple[Section, ...]]] = [("task", (material.task,))]
    if material.tools.text:
        parts.append(("tools", (material.tools,)))
    if material.shared:
        parts.append(("beginning, the same in all attempts", material.shared))
    whole = [(name, shown(sections, room)) for name, sections in parts]
    if sum(estimated_tokens(text) for _, text in whole) <= room:
        return tuple(whole)
    return tuple((name, shown(sections, room // len(parts))) for name, sections in parts)


def anchors_of(scores: Mapping[int, Score]) -> tuple[int, int]:
    """The best and the worst of the attempts scored, for the widest base that a scale can have."""
    ranked = sorted(scores, key=lambda place: (scores[place].value, place))
    return ranked[-1], ranked[0]


def on_scale(scores: Mapping[int, Score], reference: Mapping[int, Score]) -> dict[int, Score]:
    """Put a block's scores on the scale of the reference, through the attempts that both hold.

    Args:
        scores: A later block's, by place.
        reference: The first block's; two of its attempts, the anchors, are in ``scores`` too.

    Returns:
        The scores of the attempts that only ``scores`` holds. Parts that an anchor lacks are left out.
    """
    anchors = [place for place in scores if place in reference]
    value_line = _Line([scores[a].value for a in anchors], [reference[a].value for a in anchors])
    named = [set(one[anchor].parts) for one in (scores, reference) for anchor in anchors]
    lines = {
        name: _Line([scores[a].parts[name] for a in anchors], [reference[a].parts[name] for a in anchors])
        for name in sorted(set.intersection(*named))
    }
    return {
        place: Score(
            value_line(score.value),
            score.explanation,
            {name: lines[name](part) for name, part in score.parts.items() if name in lines},
        )
        for place, score in scores.items()
        if place not in reference
    }


@dataclass(frozen=True, slots=True)
class _Line:
    """The straight line through the anchors' scores here and there, clamped to [0, 1].

    Where they lie close together here, two noisy scores say nothing about a slope: then it is 1, and the
    line a shift. A slope is held between 0.5 and 2 for the same reason; the line then goes through the
    anchors' middle.
    """

    here: Sequence[float]
    there: Sequence[float]

    def __call__(self, value: float) -> float:
        middle_here = sum(self.here) / len(self.here)
        middle_there = sum(self.there) / len(self.there)
        spread_here, spread_there = self.here[0] - self.here[-1], self.there[0] - self.there[-1]
        slope = 1.0
        if abs(spread_here) >= _LEAST_SPREAD:
            slope = min(max(spread_there / spread_here, _SLOPES[0]), _SLOPES[1])
        return min(max(middle_there + slope * (value - middle_here), 0.0), 1.0)
