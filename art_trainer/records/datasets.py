"""Recorded episodes as rows of data sets: for supervised fine-tuning, for preferences, for OpenPipe.

The formats are TRL's conversational ones (https://huggingface.co/docs/trl/dataset_formats)::

    sft    {"messages": [{"role": "user", "content": …}, …], "tools": "[…]"}
    dpo    {"prompt": [messages], "chosen": [message], "rejected": [message], "tools": "[…]"}

``tools`` is JSON text, as TRL takes it too: Arrow would fill the schemas of different tools up to one
structure. A reply's content is what the policy said, calls in its own words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from art_trainer.episodes import Episode, Group
from art_trainer.errors import ConfigError
from art_trainer.records.reader import iter_steps
from art_trainer.rollout import first_messages

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which attempts are good enough to learn from.

    Attributes:
        min_reward: The lowest reward; ``None`` for any.
        top_fraction: Of those the share with the highest rewards in the run, in (0, 1]; of equal ones the
            later, which a better policy played.
        steps: The steps they may be of; ``None`` for all.
        duplicates: Whether an attempt that another one equals word for word is taken again.

    Raises:
        ConfigError: Where ``top_fraction`` is no share.
    """

    min_reward: float | None = None
    top_fraction: float | None = None
    steps: Container[int] | None = None
    duplicates: bool = False

    def __post_init__(self) -> None:
        if self.top_fraction is not None and not 0 < self.top_fraction <= 1:
            raise ConfigError(f"top_fraction is {self.top_fraction}: set a share above 0, at most 1")


def chosen_groups(run: Path | str, selection: Selection) -> Iterator[tuple[Group, tuple[int, ...]]]:
    """Give each group of a run and which of its members were chosen, none where a group has none.

    Attempts that a fault ended, and those without a turn, are never chosen. It holds one step in memory, and
    a few bytes an episode.

    Args:
        run: The run's folder.
        selection: What is good enough.

    Raises:
        RecordError: Where a record is damaged.
    """
    best = None if selection.top_fraction is None else _best(run, selection)
    seen: set[bytes] = set()
    place = -1
    for record in iter_steps(run, selection.steps):
        for group in (*record.groups, *record.replaced):
            members = []
            for index, episode in enumerate(group.episodes):
                place += 1
                if not _is_candidate(episode, selection) or (best is not None and not best[place]):
                    continue
                said = _fingerprint(episode)
                if selection.duplicates or said not in seen:
                    seen.add(said)
                    members.append(index)
            if members:
                yield group, tuple(members)


def sft_row(episode: Episode, system: str = "") -> dict[str, Any]:
    """Return an attempt as one conversation that ends with its last reply.

    Args:
        episode: The attempt, of one turn or more.
        system: The standing instructions that its first observation may begin with; they become the system
            message, as they were for the policy.
    """
    messages = _conversation(episode, len(episode.turns) - 1, system)
    messages.append(_said(episode, -1))
    return {"messages": messages, **_tools(episode)}


def dpo_rows(
    group: Group, chosen: Container[int], *, min_gap: float = 0.0, system: str = ""
) -> Iterator[dict[str, Any]]:
    """Give pairs of a group's attempts: the best with the worst, the second with the second last, and so on.

    The prompt is everything up to where the two part, the rest one reply of each: an observation is not the
    policy's to prefer. Pairs that never part, or part because the environment answered otherwise, are left
    out.

    Args:
        group: The group.
        chosen: Which members may be the better one.
        min_gap: How much more reward the better one has at least; more than none in any case.
        system: As for :func:`sft_row`.
    """
    order = sorted(
        (index for index, episode in enumerate(group.episodes) if episode.turns and not episode.failed),
        key=lambda index: -group.episodes[index].reward,
    )
    for place in range(len(order) // 2):
        better, worse = group.episodes[order[place]], group.episodes[order[-1 - place]]
        gap = better.reward - worse.reward
        turn = _parting(better, worse)
        if order[place] in chosen and gap > 0 and gap >= min_gap and turn is not None:
            yield {
                "prompt": _conversation(better, turn, system),
                "chosen": [_said(better, turn)],
                "rejected": [_said(worse, turn)],
                **_tools(better),
            }


def is_held_out(episode: Episode, share: float) -> bool:
    """Whether an attempt's task is among a share of the tasks; the same task always is, or never."""
    digest = hashlib.sha256(f"{episode.env_id}\n{episode.task_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2.0**64


def _best(run: Path | str, selection: Selection) -> NDArray[np.bool_]:
    """Return for each attempt of the steps whether it is in the top fraction of the candidates."""
    rewards: list[float] = []
    for record in iter_steps(run, selection.steps):
        for group in (*record.groups, *record.replaced):
            rewards += [
                episode.reward if _is_candidate(episode, selection) else float("nan")
                for episode in group.episodes
            ]
    values = np.asarray(rewards, np.float64)
    candidates = np.flatnonzero(~np.isnan(values))
    assert selection.top_fraction is not None
    count = int(np.ceil(selection.top_fraction * len(candidates)))
    order = candidates[np.argsort(values[candidates], kind="stable")]
    best = np.zeros(len(values), np.bool_)
    best[order[len(order) - count :]] = True
    return best


def _is_candidate(episode: Episode, selection: Selection) -> bool:
    good = selection.min_reward is None or episode.reward >= selection.min_reward
    return good and bool(episode.turns) and not episode.failed


def _fingerprint(episode: Episode) -> bytes:
    words = [episode.env_id, episode.observation, *(turn.reply for turn in episode.turns)]
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).digest()


def _conversation(episode: Episode, turns: int, system: str) -> list[Message]:
    """Return the messages before the reply of that turn."""
    messages = first_messages(episode.observation, system)
    for number, turn in enumerate(episode.turns[:turns]):
        messages += [_said(episode, number), {"role": "user", "content": turn.observation}]
    return messages


def _said(episode: Episode, turn: int) -> Message:
    return {"role": "assistant", "content": episode.turns[turn].reply}


def _tools(episode: Episode) -> dict[str, str]:
    return {"tools": json.dumps(episode.tools)} if episode.tools else {}


def _parting(one: Episode, other: Episode) -> int | None:
    """Return the first turn in which two attempts say something else after the same words."""
    if one.observation != other.observation:
        return None
    for number, (mine, theirs) in enumerate(zip(one.turns, other.turns, strict=False)):
        if mine.reply != theirs.reply:
            return number
        if mine.observation != theirs.observation:
            return None
    return None
