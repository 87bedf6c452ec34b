"""The rewards of the mail environment: ``"outcome"`` pays at the end, ``"shaped"`` for searching too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from art_gym.envs.mail.store.store import MailStore

REWARDS = ("outcome", "shaped")
"""The rewards by the name that ``gym.make`` takes."""

_CORRECT, _WRONG = 1.0, -0.5
_SOURCES, _QUICK = 0.1, 0.1
_FOUND, _READ = 0.1, 0.1
_NOTHING_FOUND = -0.1
_RELEVANCE, _DIVERSITY = 0.2, 0.05
_SHAPED_MOST = 1.0


@dataclass
class Progress:
    """What an episode has achieved so far."""

    found: bool = False
    """Whether a right mail was listed."""
    read: bool = False
    """Whether a right mail was opened."""
    searches: int = 0
    senders: set[str] = field(default_factory=set)
    """Senders already paid for."""
    shaped: float = 0.0
    """Step rewards paid so far."""

    def terms(self) -> dict[str, float]:
        """What is paid for progress if the episode does not end right."""
        terms = {"found": _FOUND} if self.found else {}
        return terms | {"read": _READ} if self.read else terms


def end_terms(progress: Progress, *, right: bool, sources: float, turns_left: float) -> dict[str, float]:
    """What an end pays under both rewards; ``sources`` and ``turns_left`` are shares in [0, 1]."""
    if not right:
        return {"wrong": _WRONG, **progress.terms()}
    terms = {"correct": _CORRECT, "quick": _QUICK * turns_left}
    return terms | {"sources": _SOURCES * sources} if sources else terms


def search_terms(progress: Progress, store: MailStore, question: str, new: Sequence[int]) -> dict[str, float]:
    """What a search pays under ``"shaped"``, given the rows of its results that were not listed before.

    They pay by what they share with the question and by who sent them, up to 1 over the episode.
    """
    if not new:
        return {"nothing_found": _NOTHING_FOUND}
    wanted = _words(question)
    messages = [store.message(row) for row in new]
    shares = [len(wanted & _words(f"{m.subject} {m.body}")) / max(1, len(wanted)) for m in messages]
    new_senders = {message.sender.email for message in messages} - progress.senders
    progress.senders |= new_senders
    relevance = _RELEVANCE * sum(shares) / len(shares)
    diversity = _DIVERSITY * len(new_senders)
    left = max(0.0, _SHAPED_MOST - progress.shaped)
    scale = min(1.0, left / (relevance + diversity)) if relevance + diversity else 0.0
    progress.shaped += scale * (relevance + diversity)
    return {"relevance": scale * relevance, "diversity": scale * diversity}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{3,}", text.lower()))
