"""The numbers of one training step; names are TRL's if it has them.

From the episodes: ``reward`` and ``reward_std`` (mean over groups of the standard deviation inside one),
``success``, ``turns``, ``invalid_actions`` (share of replies without a valid call), ``num_tokens`` (sampled
in the step), ``completions/mean_length`` (sampled per episode), ``completions/clipped_ratio`` (share of
replies cut off by ``max_completion_length``), ``histories_per_episode`` (token histories: more than one
where a context does not extend the one before), ``cut_off`` (share of episodes that the turn limit or a full
context ended), ``frac_reward_zero_std``, ``failed_groups`` and ``score/<term>``. With judged rewards
``independent_reward``, what the environment itself paid, and ``unjudged_groups/<reason>``, the failed groups
that a judge had no score for. From the update: ``loss``, ``policy_loss``, ``entropy`` (nats per token),
``clip_ratio`` (share of tokens whose gradient the clip took, or for ``"cispo"`` made smaller), ``ratio/min``
and ``ratio/max`` (of the learner's probability to the sampler's, over all tokens or sequences of the step),
``grad_norm``, ``kl`` (nats per token, to the reference if there is one, else from the policy that sampled),
with a reference also ``sampling_kl`` (from the policy that sampled), ``trained_tokens`` and
``skipped_updates``. If the sampler is compared with the learner,
``sampling/sampling_logp_difference/{mean,max}`` (nats, without sign) and
``sampling/importance_sampling_ratio/{min,mean,max}`` (as used, within its bounds). With dynamic sampling
``resampled_groups``, and what comes from episodes is over all that were played: those kept were chosen by
their rewards. With a value head ``value`` (mean over turns, before the update), ``explained_variance`` (of
the returns, by the values before the update), ``value_loss`` (half the squared error a turn, in units of the
returns' variance, part of ``loss``) and ``value_clip_ratio`` (share of turns whose value the clip held).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from art_trainer.config import GRPOConfig
from art_trainer.models.packing import TokenRow
from art_trainer.types import CUT_OFF, Episode, Group


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the means over episodes that did not fail; ``success`` only if the environment reports it."""
    played = [episode for episode in episodes if not episode.failed]
    if not played:
        return {}
    tokens = sum(episode.sampled_tokens for episode in played)
    replies = sum(len(episode.turns) for episode in played)
    metrics = {
        "reward": _mean([episode.reward for episode in played]),
        "turns": replies / len(played),
        "invalid_actions": sum(episode.invalid_actions for episode in played) / max(replies, 1),
        "num_tokens": float(tokens),
        "completions/mean_length": tokens / len(played),
        "completions/clipped_ratio": sum(turn.cut for one in played for turn in one.turns) / max(replies, 1),
        "histories_per_episode": _mean([len(episode.histories) for episode in played]),
        "cut_off": _mean([episode.ending in CUT_OFF for episode in played]),
    }
    if any(episode.success is not None for episode in played):
        # One that never reached its end, because the context was full, has not succeeded.
        metrics["success"] = _mean([bool(episode.success) for episode in played])
    paid = [episode.independent_reward for episode in played]
    if any(value is not None for value in paid):
        metrics["independent_reward"] = _mean([value for value in paid if value is not None])
    for name in sorted({name for episode in played for name in episode.score_terms}):
        metrics[f"score/{name}"] = _mean([episode.score_terms.get(name, 0.0) for episode in played])
    return metrics


def batch_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return :func:`episode_metrics` of all members, and what concerns groups."""
    whole = [group for group in groups if group.whole]
    rewards = [group.rewards for group in whole]
    spreads = [float(np.std(values, ddof=1)) for values in rewards if len(values) > 1]
    flat = [len(set(values)) == 1 for values in rewards]
    unjudged = Counter(reason for group in groups if (reason := group.episodes[0].unjudged) is not None)
    return episode_metrics([episode for group in groups for episode in group.episodes]) | {
        "reward_std": _mean(spreads),
        "frac_reward_zero_std": _mean(flat),
        "failed_groups": float(len(groups) - len(whole)),
        **{f"unjudged_groups/{reason}": float(count) for reason, count in unjudged.items()},
    }


def staleness(groups: Sequence[Group], version: int) -> float:
    """How many updates older the weights were that sampled a token, mean over the sampled tokens."""
    ages, tokens = 0, 0
    for span in (s for g in groups for e in g.episodes for h in e.histories for s in h.spans):
        if span.turn is not None:
            ages += (version - span.policy_version) * len(span.token_ids)
            tokens += len(span.token_ids)
    return ages / tokens if tokens else 0.0


def correction_metrics(
    rows: Sequence[TokenRow], own: Sequence[NDArray[np.float32]], reported: Sequence[NDArray[np.float32]]
) -> dict[str, float]:
    """Return how far the sampler's log-probs are from the learner's, and the weights of rows for it."""
    pairs = [np.abs(a - b) for a, b in zip(own, reported, strict=True)]
    gaps = np.concatenate([*pairs, np.zeros(0, np.float32)])
    gaps = gaps[~np.isnan(gaps)]
    corrections = [row.corrections for row in rows if row.corrections is not None]
    ratios = np.concatenate([*corrections, np.zeros(0, np.float32)])
    if not gaps.size or not ratios.size:
        return {}
    return {
        "sampling/sampling_logp_difference/mean": float(gaps.mean()),
        "sampling/sampling_logp_difference/max": float(gaps.max()),
        "sampling/importance_sampling_ratio/min": float(ratios.min()),
        "sampling/importance_sampling_ratio/mean": float(ratios.mean()),
        "sampling/importance_sampling_ratio/max": float(ratios.max()),
    }


class UpdateTotals:
    """Adds up an update's micro-batches and optimizer steps."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._ratios: list[tuple[float, float]] = []
        self._norms: list[float] = []
        self._skipped = 0

    def add(self, sums: Mapping[str, float]) -> None:
        """Add one micro-batch."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._ratios.append((sums["ratio_min"], sums["ratio_max"]))

    def step(self, grad_norm: float | None) -> None:
        """Add one optimizer step, ``None`` for one that was skipped."""
        if grad_norm is None:
            self._skipped += 1
        else:
            self._norms.append(grad_norm)

    def metrics(self, config: GRPOConfig) -> dict[str, float]:
        """Return losses per optimizer step, the rest per token; all 0 if nothing was trained on."""
        steps = len(self._norms) + self._skipped

        def per(name: str, count: float) -> float:
            return self._sums.get(name, 0.0) / max(count, 1.0)

        tokens, turns = self._sums.get("tokens", 0.0), self._sums.get("value_turns", 0.0)
        metrics = {
            "loss": per("loss", steps),
            "policy_loss": per("policy_loss", steps),
            "kl": per("kl" if config.beta else "sampling_kl", tokens),
            "entropy": per("entropy", tokens),
            "clip_ratio": per("clipped", tokens),
            "grad_norm": _mean(self._norms),
            "trained_tokens": tokens / config.num_iterations,
            "skipped_updates": float(self._skipped),
        }
        if config.beta:
            metrics["sampling_kl"] = per("sampling_kl", tokens)
        if turns:
            metrics["value_loss"] = per("value_loss", turns)
            metrics["value_clip_ratio"] = per("value_clipped", turns)
        if self._ratios:
            lowest, highest = zip(*self._ratios, strict=True)
            # By NumPy, which keeps what is not a number; Python's comparisons lose it.
            metrics |= {"ratio/min": float(np.min(lowest)), "ratio/max": float(np.max(highest))}
        return metrics


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
