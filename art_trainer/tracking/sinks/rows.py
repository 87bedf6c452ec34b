"""Metrics and episodes as dashboards show them: clear names, flat rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from art_trainer.tracking.sinks.base import EpisodesPlayed, RunInfo
from art_trainer.types import Episode, Turn

_NAMES = {
    "clip_ratio": "train/clip_fraction",
    "grad_norm": "train/gradient_norm",
    "reward": "rollout/average_reward",
    "reward_std": "rollout/reward_std",
    "success": "rollout/success_rate",
    "turns": "rollout/average_episode_length",
    "invalid_actions": "rollout/invalid_actions",
    "num_tokens": "rollout/tokens",
    "tokens_per_second": "rollout/tokens_per_second",
}
DESCRIPTION_LENGTH = 100
"""Characters of a state description."""
_LOOKED_AT = 4 * DESCRIPTION_LENGTH  # of each end of a state, before runs of spaces are joined
_ELLIPSIS = " … "


def dashboard_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics by their names in dashboards, without the step itself.

    Each is in the section train, rollout or eval, or in its own if it has one.
    """
    return {_dashboard_name(name): value for name, value in metrics.items() if name != "step"}


def _dashboard_name(name: str) -> str:
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    return _NAMES.get(name) or (name if "/" in name else f"train/{name}")


class EpisodeRow(NamedTuple):
    """An episode in a table.

    ``steps`` are the turns played. ``accuracy`` and ``efficiency`` are the environment's metrics of these
    names; otherwise the share of passed tests or of valid replies, and the share of allowed turns left.
    """

    step: int
    episode_id: str
    total_reward: float
    steps: int
    success: bool | None
    accuracy: float | None
    efficiency: float | None


class ActionRow(NamedTuple):
    """One reply in a table.

    ``action_type`` is the tool that was called, ``invalid:`` and the kind of error, or ``text``; ``state``
    the beginning and end of what the reply answered. Turns count from 1.
    """

    step: int
    episode_id: str
    turn: int
    action_type: str
    reward: float
    state: str


def episode_rows(event: EpisodesPlayed, run: RunInfo) -> Iterator[EpisodeRow]:
    """Yield one row for each episode."""
    for index, episode in enumerate(event.episodes):
        yield EpisodeRow(
            event.step,
            event.episode_id(index),
            episode.reward,
            len(episode.turns),
            episode.success,
            _accuracy(episode),
            _efficiency(episode, run.max_turns),
        )


def action_rows(event: EpisodesPlayed) -> Iterator[ActionRow]:
    """Yield one row for each reply of each episode."""
    described: dict[str, str] = {}  # the episodes of a group begin with the same state
    for index, episode in enumerate(event.episodes):
        state, episode_id = episode.observation, event.episode_id(index)
        for number, turn in enumerate(episode.turns, 1):
            if state not in described:
                described[state] = describe(state)
            yield ActionRow(event.step, episode_id, number, _action_type(turn), turn.reward, described[state])
            state = turn.observation


def describe(state: str) -> str:
    """A state in one line of at most 100 characters: of a longer one the beginning and the end."""
    line = " ".join(state[:_LOOKED_AT].split())
    if len(state) > _LOOKED_AT:
        line += " " + " ".join(state[-_LOOKED_AT:].split())
    if len(line) <= DESCRIPTION_LENGTH:
        return line
    end = (DESCRIPTION_LENGTH - len(_ELLIPSIS)) // 2
    return line[: DESCRIPTION_LENGTH - len(_ELLIPSIS) - end] + _ELLIPSIS + line[-end:]


def _action_type(turn: Turn) -> str:
    if turn.error is not None:
        return f"invalid:{turn.error.get('kind', 'unknown')}"
    return str(turn.call["name"]) if turn.call is not None else "text"


def _accuracy(episode: Episode) -> float | None:
    valid = 1 - episode.invalid_actions / len(episode.turns) if episode.turns else None
    return episode.metrics.get("accuracy", episode.metrics.get("passed", valid))


def _efficiency(episode: Episode, max_turns: int | None) -> float | None:
    left = max(0.0, 1 - len(episode.turns) / max_turns) if max_turns else None
    return episode.metrics.get("efficiency", left)
