"""Checks of workers' results against the run, the other attempts of the group, and the trained model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from art_trainer.config import GRPOConfig
from art_trainer.inference.sampling import SamplingParams, batch_logprobs
from art_trainer.models.logprobs import Scorer
from art_trainer.models.packing import TokenRow, pack
from art_trainer.types import Episode

_TOKEN_GAP, _MEAN_GAP, _MEAN_TOKENS = 10.0, 2.0, 5
"""Nats by which a log-prob, and those of at least so many tokens on average, may differ from the model's. The
same weights in another precision give differences of hundredths, those of some updates before, of tenths."""


def episode_error(episode: Episode, env: str, vocabulary: int, max_context: int | None) -> str | None:
    """Return why a model cannot learn from an episode of a worker, or ``None``.

    A worker with another tokenizer may send tokens beyond the vocabulary. They would crash the learner, on a
    GPU for good; and once in the result log, again at each resume.

    Args:
        episode: The episode.
        env: The run's environment, with or without the module or file that defines it, and its version.
        vocabulary: How many tokens the model knows.
        max_context: Most tokens of a history; ``None``: no limit but a message's.
    """
    wanted = env.rpartition(":")[2]
    if wanted not in (episode.env_id, episode.env_id.rpartition("-v")[0]):
        return f"it was played in {episode.env_id!r}, the run's environment is {wanted!r}"
    for history in episode.histories:
        length = sum(len(span.token_ids) for span in history.spans)
        if max_context is not None and length > max_context:
            return f"a history has {length} tokens, the context holds {max_context}"
        for span in history.spans:
            for token in (min(span.token_ids, default=0), max(span.token_ids, default=0)):
                if not 0 <= token < vocabulary:
                    return f"it has the token {token}, the model knows those from 0 to {vocabulary - 1}"
            # The turn in which an episode failed may have tokens and nothing else.
            if span.turn is not None and span.turn >= len(episode.turns) and not episode.failed:
                return f"it has tokens of turn {span.turn}, but {len(episode.turns)} turns"
    return None


def disagreements(episodes: Sequence[Episode]) -> dict[int, str]:
    """Return which attempts of a group start otherwise than most of them, and how; all if none are most.

    Attempts of a group start alike. Which of two is wrong cannot be known from them alone.
    """
    # A failed episode may not know its task.
    starts = {m: (e.env_id, e.task_id, e.observation) for m, e in enumerate(episodes) if not e.failed}
    ranked = Counter(starts.values()).most_common(2)
    if len(ranked) < 2:
        return {}
    right = ranked[0][0] if ranked[0][1] > ranked[1][1] else None
    wrong = {}
    for member, start in starts.items():
        if start != right:
            other = right or next(one for one, _ in ranked if one != start)
            names = ("environment", "task", "first observation")
            found = next(it for it in zip(names, start, other, strict=True) if it[1] != it[2])
            wrong[member] = (
                f"its {found[0]} is {found[1]!r:.200}, another attempt of its group has {found[2]!r:.200}. "
                "All workers need one version of the environment and its data, and equal seeds start alike"
            )
    return wrong


class LogprobCheck:
    """Compares the log-probs that workers report with those of the trained model.

    Args:
        model: The model that is trained.
        config: How training samples, and sizes.
    """

    def __init__(self, model: torch.nn.Module, config: GRPOConfig) -> None:
        self._model = model
        self._config = config
        self._scorer: Scorer | None = None

    def errors(self, episodes: Sequence[Episode]) -> dict[int, str]:
        """Return which episodes report log-probs that are not this model's, and by how much."""
        gaps: dict[int, list[NDArray[np.float32]]] = {}
        for member, gap in self._gaps(episodes):
            gaps.setdefault(member, []).append(gap)
        return {
            member: f"its log-probs differ from the model's by {gap.mean():.3g} nats a token, at most by "
            f"{gap.max():.3g}: no model with these weights has sampled its tokens"
            for member, gap in sorted((member, np.concatenate(parts)) for member, parts in gaps.items())
            # "not" also catches NaN.
            if not (gap.max() <= _TOKEN_GAP and (gap.size < _MEAN_TOKENS or gap.mean() <= _MEAN_GAP))
        }

    @torch.no_grad()
    def _gaps(self, episodes: Sequence[Episode]) -> list[tuple[int, NDArray[np.float32]]]:
        """Return the differences of each history's log-probs, and its episode's index."""
        config, rows = self._config, []
        members: dict[int, int] = {}
        found: list[tuple[int, NDArray[np.float32]]] = []
        for member, episode in enumerate(episodes):
            for history in () if episode.failed else episode.histories:
                worth = np.zeros(len(episode.turns))
                rows.append(TokenRow.from_history(history, advantages_T=worth, weight=0.0, group=0))
                members[id(rows[-1])] = member
        scorer = self._scorer = self._scorer or Scorer(self._model)
        params = SamplingParams.for_training(config)
        share = config.share_prefixes and scorer.shares_prefixes
        for batch in pack(rows, config.tokens_per_microbatch, share=share, device=scorer.device):
            gaps = (batch_logprobs(scorer, batch, params).float() - batch.old_logprobs_N).abs().cpu().numpy()
            ends = np.cumsum([row.targets.size for row in batch.rows])[:-1]
            found += zip((members[id(row)] for row in batch.rows), np.split(gaps, ends), strict=True)
        return found
