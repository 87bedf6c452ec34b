"""One recorded episode as the page shows it: turn by turn, with its rewards and its tokens' log-probs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from art_trainer.dashboard.growing_frames import RecordedStep
from art_trainer.dashboard.json_values import finite
from art_trainer.dashboard.token_texts import token_texts
from art_trainer.episodes import Episode
from art_trainer.errors import RecordError
from art_trainer.records.encoding import decode_episode


def episode_view(run: Path, frame: RecordedStep, place: int) -> dict[str, Any] | None:
    """Return an episode with its place among the attempts of its group.

    Args:
        run: The run's folder.
        frame: Where its step's episodes lie.
        place: Its number among them, from 0.

    Returns:
        The episode's fields without its tokens; each turn with ``logprobs``, ``texts`` (see
        :mod:`art_trainer.dashboard.token_texts`) and ``versions`` of the weights; and ``attempts``, those of
        its group in short. ``None`` where the frame holds fewer episodes. All numbers are finite: others are
        ``None``.

    Raises:
        RecordError: Where the records are damaged.
    """
    lines = _group_of(frame, place)
    if not lines:
        return None
    try:
        episodes = {at: decode_episode(data) for at, data in lines.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{frame.named()}: not an episode ({error!r})") from error
    episode = episodes[place]
    data = lines[place]
    view: dict[str, Any] = finite(
        {
            **{name: data[name] for name in ("step", "group", "replaced")},
            "place": place,
            "env_id": episode.env_id,
            "task_id": episode.task_id,
            "seed": episode.seed,
            "observation": episode.observation,
            "turns": _turns(run, episode),
            "ending": str(episode.ending),
            "success": episode.success,
            "reward": episode.reward,
            "independent_reward": episode.independent_reward,
            "score_terms": episode.score_terms,
            "metrics": episode.metrics,
            "error": episode.error,
            "unjudged": episode.unjudged,
            "judgements": data["judgements"],
            "tools": episode.tools,
            "facts": episode.facts,
            "attempts": [_in_short(at, one) for at, one in sorted(episodes.items())],
        }
    )
    return view


def _group_of(frame: RecordedStep, place: int) -> dict[int, dict[str, Any]]:
    """Return the lines of the attempts of a group, which follow each other, by place; none where it ends."""
    found: dict[int, dict[str, Any]] = {}
    group: tuple[Any, Any] | None = None
    try:
        for at, line in enumerate(frame.lines()):
            data = json.loads(line)
            own = (data["group"], data["replaced"])
            if own != group:
                if place in found:
                    break
                found, group = {}, own
            found[at] = data
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{frame.named()}: not an episode ({error!r})") from error
    return found if place in found else {}


def _turns(run: Path, episode: Episode) -> list[dict[str, Any]]:
    tokens: list[list[int]] = [[] for _ in episode.turns]
    logprobs: list[list[float]] = [[] for _ in episode.turns]
    versions: list[set[int]] = [set() for _ in episode.turns]
    for history in episode.histories:
        for span in history.spans:
            if span.turn is not None and span.turn < len(tokens):
                tokens[span.turn] += span.token_ids
                logprobs[span.turn] += span.logprobs
                versions[span.turn].add(span.policy_version)
    texts = token_texts(run, [(ids, turn.reply) for ids, turn in zip(tokens, episode.turns, strict=True)])
    return [
        {
            "reply": turn.reply,
            "observation": turn.observation,
            "reward": turn.reward,
            "score_terms": turn.score_terms,
            "call": turn.call,
            "error": turn.error,
            "cut": turn.cut,
            "logprobs": [_rounded(value) for value in logprobs[number]],
            "texts": texts[number],
            "versions": sorted(versions[number]),
        }
        for number, turn in enumerate(episode.turns)
    ]


def _in_short(place: int, episode: Episode) -> dict[str, Any]:
    return {
        "place": place,
        "reward": episode.reward,
        "success": episode.success,
        "ending": str(episode.ending),
        "failed": episode.failed,
        "turns": len(episode.turns),
    }


def _rounded(value: float) -> float | None:
    return round(value, 4) + 0.0 if math.isfinite(value) else None
