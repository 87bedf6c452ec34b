"""The rewards of the mail environment, and the facts that judges compare.

Rewards: ``"outcome"`` pays at the end, ``"shaped"`` lends on the way to it.

An end without the right result always costs the same: a wrong result, none, no turns left. So what
never succeeds earns the least there is, and a guess is never worse than silence.

Progress is paid by ``"shaped"`` alone, as the change of a potential that is 0 at the start and at the end
(Ng, Harada and Russell, 1999, "Policy invariance under reward transformations"). It moves reward to the turns
that come nearer to the result and adds nothing to an episode's sum, so no policy gains by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REWARDS = ("outcome", "shaped")
"""The rewards by the name that ``gym.make`` takes."""

_CORRECT, _FAILED = 1.0, -0.5
_SOURCES, _QUICK = 0.1, 0.1
_PROGRESS = 0.2


@dataclass
class Progress:
    """What an episode has achieved so far."""

    found: bool = False
    """Whether a right mail was listed."""
    read: bool = False
    """Whether a right mail was opened."""
    searches: int = 0
    lent: float = 0.0
    """What ``"shaped"`` has paid so far."""

    def terms(self, *, ended: bool = False) -> dict[str, float]:
        """What ``"shaped"`` pays for a turn: 0.2 for each of found and read, taken back at the end."""
        potential = 0.0 if ended else _PROGRESS * (self.found + self.read)
        change, self.lent = potential - self.lent, potential
        return {"progress": change} if change else {}


def right_terms(*, sources: float, turns_left: float) -> dict[str, float]:
    """What the right result pays; ``sources`` and ``turns_left`` are shares in [0, 1]."""
    terms = {"correct": _CORRECT, "quick": _QUICK * turns_left}
    return terms | {"sources": _SOURCES * sources} if sources else terms


def failed_terms(*, answered: bool) -> dict[str, float]:
    """What any other end costs: ``wrong`` for a wrong result, ``no_answer`` for none."""
    return {"wrong" if answered else "no_answer": _FAILED}


# Facts about a finished episode, in the form that judges compare.

_NOTHING = "not in the mailbox"
_FEWEST_CALLS = {
    "known_item": ("search", "select"),
    "fact": ("search", "read", "answer"),
    "two_messages": ("search", "read", "read", "answer"),
    "unanswerable": ("search", "answer"),
}


def episode_facts(
    question: Mapping[str, Any], result: Mapping[str, str] | None, gold: Sequence[str], *, right: bool = False
) -> dict[str, Any]:
    """An episode's facts, see :meth:`art_gym.env.TextEnv.facts`.

    A mail is named by its Message-ID: the ids of an episode have no meaning outside it. An answer in any
    accepted form is replaced by the first form, so that right answers are equal. Only free text may be half
    right: a date, a name or an amount that merely looks like the right one is wrong.

    Args:
        question: The task's data.
        result: ``{"mail": Message-ID}``, ``{"answer": text}``, or ``None`` for giving up.
        gold: The Message-IDs of the right mails.
        right: Whether the result was graded right.
    """
    kind = question["kind"]
    free_text = kind in ("fact", "two_messages") and question["answer_type"] in (None, "text")
    facts: dict[str, Any] = {
        "match": "similar" if free_text else "exact",
        "optimal_turns": len(_FEWEST_CALLS[kind]),
        "required_actions": list(dict.fromkeys(_FEWEST_CALLS[kind])),
    }
    if result is not None:  # left out, not None: vector environments join each key's values of one type
        facts["result"] = dict(result)
    if kind == "known_item":
        if gold:
            facts["expected"] = dict(result) if result and right else {"mail": min(gold)}
        return facts
    answers = [_NOTHING] if kind == "unanswerable" else question["answers"]
    if answers:
        facts["expected"] = {"answer": answers[0]}
        if right:
            facts["result"] = dict(facts["expected"])
    return facts
