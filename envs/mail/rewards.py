"""The two rewards of the mail environment: what each pays, and for what only once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from art_gym.envs.mail.store import MailStore

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
        """What is paid for progress where the episode does not end right."""
        terms = {}
        if self.found:
            terms["found"] = _FOUND
        if self.read:
            terms["read"] = _READ
        return terms


class Reward(Protocol):
    """How an episode is paid."""

    def search(
        self, progress: Progress, store: MailStore, question: str, new: Sequence[int]
    ) -> Mapping[str, float]:
        """Pay for a search, given the rows of its results that were not listed before."""

    def end(
        self, progress: Progress, *, right: bool, sources: float, turns_left: float
    ) -> Mapping[str, float]:
        """Pay for the end; ``sources`` and ``turns_left`` are shares in [0, 1]."""


class OutcomeReward:
    """Right or wrong at the end, with small terms beside it; searching pays nothing by itself."""

    def search(
        self, progress: Progress, store: MailStore, question: str, new: Sequence[int]
    ) -> Mapping[str, float]:
        """Pay nothing."""
        return {}

    def end(
        self, progress: Progress, *, right: bool, sources: float, turns_left: float
    ) -> Mapping[str, float]:
        """Pay for being right, or take for being wrong."""
        if not right:
            return {"wrong": _WRONG, **progress.terms()}
        terms = {"correct": _CORRECT, "quick": _QUICK * turns_left}
        if sources:
            terms["sources"] = _SOURCES * sources
        return terms


class ShapedReward(OutcomeReward):
    """The outcome reward and step rewards for searching, capped over the episode."""

    def search(
        self, progress: Progress, store: MailStore, question: str, new: Sequence[int]
    ) -> Mapping[str, float]:
        """Pay for new results by what they share with the question and by who sent them."""
        if not new:
            return {"nothing_found": _NOTHING_FOUND}
        asked = _words(question)
        shares, new_senders = [], set()
        for row in new:
            message = store.message(row)
            shares.append(len(asked & _words(f"{message.subject} {message.body}")) / max(1, len(asked)))
            new_senders.add(message.sender.email)
        new_senders -= progress.senders
        progress.senders |= new_senders
        relevance = _RELEVANCE * sum(shares) / len(shares)
        diversity = _DIVERSITY * len(new_senders)
        left = max(0.0, _SHAPED_MOST - progress.shaped)
        scale = min(1.0, left / (relevance + diversity)) if relevance + diversity else 0.0
        progress.shaped += scale * (relevance + diversity)
        return {"relevance": scale * relevance, "diversity": scale * diversity}


REWARDS: Mapping[str, Reward] = {"outcome": OutcomeReward(), "shaped": ShapedReward()}
"""The rewards by the name that ``gym.make`` takes."""


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{3,}", text.lower()))
