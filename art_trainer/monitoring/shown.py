"""Metrics and episodes as dashboards show them: clear names, flat rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from art_trainer.episodes import Episode, Turn
from art_trainer.monitoring.events import EpisodesPlayed, RunInfo

_NAMES = {
    "policy_loss": "train/policy_loss",
    "value_loss": "train/value_loss",
    "loss": "train/loss",
    "kl": "train/kl",
    "entropy": "train/entropy",
    "clip_ratio": "train/clip_fraction",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/gradient_norm",
    "reward": "rollout/average_reward",
    "reward_std": "rollout/reward_std",
    "success": "rollout/success_rate",
    "turns": "rollout/average_episode_length",
    "invalid_actions": "rollout/invalid_actions",
    "num_tokens": "rollout/tokens",
    "tokens_per_second": "rollout/tokens_per_second",
}
_EVALUATION = "eval_"
_OTHERS = "train/"
DESCRIPTION_LENGTH = 100
"""Characters of a state description."""
_LOOKED_AT = 4 * DESCRIPTION_LENGTH  # of each end of a state, whose spaces are drawn together
_OMISSION = " … "
_ACCURACY = ("accuracy", "passed")
"""Metrics of an environment that say how right an episode was, from 0 to 1."""


def shown_name(name: str) -> str:
    """A metric's name in dashboards: in one of the sections train, rollout, eval, or its own.

    Names that have a section (``time/update``, ``score/found``) keep it.
    """
    if name.startswith(_EVALUATION):
        return f"eval/{name.removeprefix(_EVALUATION)}"
    return _NAMES.get(name) or (name if "/" in name else _OTHERS + name)


def shown_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics by their shown names, without the step itself."""
    return {shown_name(name): value for name, value in metrics.items() if name != "step"}


class EpisodeRow(NamedTuple):
    """An episode in a table."""

    step: int
    episode_id: str
    total_reward: float
    steps: int
    """Turns played."""
    success: bool | None
    accuracy: float | None
    """What the environment reports under this name, or its share of passed tests; otherwise the share of
    replies that held a valid action. ``None`` without any reply."""
    efficiency: float | None
    """What the environment reports under this name, otherwise the share of allowed turns that were left."""


class ActionRow(NamedTuple):
    """One reply in a table."""

    step: int
    episode_id: str
    turn: int
    """From 1."""
    action_type: str
    """The tool that was called, ``invalid:`` and the kind of error, or ``text`` where neither is known."""
    reward: float
    state: str
    """Beginning and end of what the reply answered, at most 100 characters."""


def episode_rows(event: EpisodesPlayed, run: RunInfo) -> Iterator[EpisodeRow]:
    """One row for each episode."""
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
    """One row for each reply of each episode."""
    described: dict[str, str] = {}  # the episodes of a group begin with the same state
    for index, episode in enumerate(event.episodes):
        seen, episode_id = episode.observation, event.episode_id(index)
        for number, turn in enumerate(episode.turns, 1):
            state = described.get(seen)
            if state is None:
                state = described[seen] = describe(seen)
            yield ActionRow(event.step, episode_id, number, _action_type(turn), turn.reward, state)
            seen = turn.observation


def describe(state: str) -> str:
    """A state in one line of at most 100 characters; of a longer one the beginning and the end."""
    line = " ".join(state[:_LOOKED_AT].split())
    if len(state) > _LOOKED_AT:
        line += " " + " ".join(state[-_LOOKED_AT:].split())
    if len(line) <= DESCRIPTION_LENGTH:
        return line
    end = (DESCRIPTION_LENGTH - len(_OMISSION)) // 2
    return line[: DESCRIPTION_LENGTH - len(_OMISSION) - end] + _OMISSION + line[-end:]


def _action_type(turn: Turn) -> str:
    if turn.error is not None:
        return f"invalid:{turn.error.get('kind', 'unknown')}"
    return str(turn.call["name"]) if turn.call is not None else "text"


def _accuracy(episode: Episode) -> float | None:
    for name in _ACCURACY:
        if name in episode.metrics:
            return episode.metrics[name]
    return 1 - episode.invalid_actions / len(episode.turns) if episode.turns else None


def _efficiency(episode: Episode, max_turns: int | None) -> float | None:
    if "efficiency" in episode.metrics:
        return episode.metrics["efficiency"]
    return None if not max_turns else max(0.0, 1 - len(episode.turns) / max_turns)
