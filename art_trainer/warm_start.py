"""Supervised learning on demonstrations, before reinforcement.

A policy that never does the right thing by chance learns nothing from rewards. A scripted baseline plays; its
replies, encoded just as the policy's own would be, become the tokens to predict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from art_trainer.chat import ChatFormat
from art_trainer.episodes import Episode, Span, TokenHistory
from art_trainer.errors import DivergedError
from art_trainer.optimization import UpdateGuard, make_optimizer, schedule_factor
from art_trainer.packing import Row, pack
from art_trainer.policy import Conversation, Reply
from art_trainer.rollout import MakeEnv, Start, rollout
from art_trainer.scoring import Scorer
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.transformers_policy import TransformersPolicy

MAX_SKIPPED = 10
"""Steps in a row that may be skipped for a loss or gradient that is not finite."""


def collect_demonstrations(
    policy: TransformersPolicy,
    make_env: MakeEnv,
    baseline: str,
    starts: Sequence[Start],
    *,
    keep: Callable[[Episode], bool] = lambda episode: not episode.failed,
) -> list[Episode]:
    """Let a baseline play, and write its episodes in the policy's tokens.

    Args:
        policy: Whose chat format the replies are encoded with.
        make_env: Makes one environment; its ``baselines`` has the script.
        baseline: The script's name.
        starts: Where to start.
        keep: Which episodes to keep, such as ``lambda episode: bool(episode.success)``.

    Returns:
        Episodes whose histories have the baseline's replies as sampled tokens, with log-probs of 0.
    """
    episodes = rollout(_Demonstrator(baseline, policy.format), make_env, starts)
    return [episode for episode in episodes if keep(episode)]


def warm_start(
    policy: TransformersPolicy,
    episodes: Sequence[Episode],
    *,
    epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    lr_final_ratio: float = 0.1,
    warmup_steps: int = 0,
    weight_decay: float = 0.0,
    max_grad_norm: float = 1.0,
    tokens_per_microbatch: int = 4096,
    rng: np.random.Generator,
    on_step: Callable[[dict[str, float]], None] | None = None,
) -> list[float]:
    """Train the policy to give the replies of the episodes: cross-entropy on their tokens, nats per token.

    Args:
        policy: Trained in place; its version rises by one.
        episodes: Demonstrations, or the policy's own best episodes.
        epochs: Passes over the episodes.
        batch_size: Episodes an optimizer step.
        learning_rate: Peak learning rate of AdamW; it falls in a line to ``lr_final_ratio`` of it.
        lr_final_ratio: What is left of it at the end.
        warmup_steps: Optimizer steps of the linear way up.
        weight_decay: AdamW's weight decay.
        max_grad_norm: Longest gradient a step takes.
        tokens_per_microbatch: Most padded tokens in one forward pass.
        rng: Shuffles the episodes.
        on_step: Called after each optimizer step with ``step``, ``loss``, ``learning_rate``, ``grad_norm``.

    Returns:
        The loss of each optimizer step, before it was taken.

    Raises:
        ValueError: Where the episodes have no sampled token.
        DivergedError: After ten steps in a row whose loss or gradient was not finite.
    """
    rows = [_rows(index, episode) for index, episode in enumerate(episodes)]
    rows = [members for members in rows if any(row.targets.size for row in members)]
    if not rows:
        raise ValueError(
            f"none of the {len(episodes)} episodes has a sampled token: use collect_demonstrations, or a "
            "policy that records tokens"
        )
    policy.model.eval()
    scorer = Scorer(policy.model)
    optimizer = make_optimizer(policy.model, learning_rate=learning_rate, weight_decay=weight_decay)
    guard = UpdateGuard(optimizer, max_grad_norm)
    steps = epochs * -(-len(rows) // batch_size)
    losses: list[float] = []
    skipped = 0
    for _ in range(epochs):
        order = rng.permutation(len(rows))
        for start in range(0, len(rows), batch_size):
            rate = learning_rate * schedule_factor(
                len(losses), steps, "linear", warmup_steps=warmup_steps, final_ratio=lr_final_ratio
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = [row for index in order[start : start + batch_size] for row in rows[index]]
            loss = _cross_entropy(scorer, batch, tokens_per_microbatch)
            norm = guard.step(loss)
            losses.append(loss)
            skipped = 0 if norm is not None else skipped + 1
            if skipped >= MAX_SKIPPED:
                raise DivergedError(
                    f"{skipped} optimizer steps in a row had no finite loss or gradient: lower learning_rate"
                )
            if on_step is not None:
                on_step(
                    {
                        "step": float(len(losses)),
                        "loss": loss,
                        "learning_rate": rate,
                        "grad_norm": norm if norm is not None else float("nan"),
                    }
                )
    policy.version += 1
    return losses


def _cross_entropy(scorer: Scorer, rows: Sequence[Row], max_tokens: int) -> float:
    """Add the gradient of the mean loss of the rows' tokens to the weights; return the loss."""
    tokens = sum(row.targets.size for row in rows)
    loss = 0.0
    for batch in pack(rows, max_tokens, share=scorer.shares_prefixes, device=scorer.device):
        part = -scorer.score(batch)[0].sum() / tokens
        part.backward()  # type: ignore[no-untyped-call]
        loss += float(part.detach())
    return loss


def _rows(index: int, episode: Episode) -> list[Row]:
    ones = np.ones(len(episode.turns) + 1)  # a reply that was never answered has its tokens too
    return [
        Row.from_history(history, advantages_T=ones, weight=1.0, group=index) for history in episode.histories
    ]


class _Demonstrator:
    """A scripted policy that also writes down the tokens its replies are in someone else's format."""

    def __init__(self, baseline: str, chat: ChatFormat) -> None:
        self._script = ScriptedPolicy(baseline)
        self._chat = chat
        self._histories: dict[Conversation, list[list[Span]]] = {}
        self.name = self._script.name
        self.version = 0

    def submit(self, conversation: Conversation) -> None:
        """Write down the observation and ask the script."""
        histories = self._histories.setdefault(conversation, [])
        messages, tools = conversation.messages, conversation.tools
        glue = self._chat.continuation(messages, tools) if histories else None
        if glue is None:
            histories.append([Span(tuple(self._chat.prompt(messages, tools)))])
        else:
            histories[-1].append(Span(tuple(glue)))
        self._script.submit(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the script's replies, written down as sampled."""
        answered = self._script.collect()
        for conversation, reply in answered:
            if reply.error is None:
                tokens = self._chat.reply(reply.text)
                history = self._histories[conversation][-1]
                turn = sum(message["role"] == "assistant" for message in conversation.messages) - 1
                history.append(Span(tuple(tokens), turn, (0.0,) * len(tokens)))
        return answered

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Return what was written down."""
        self._script.release(conversation)
        histories: list[Any] = self._histories.pop(conversation, [])
        return tuple(TokenHistory(tuple(spans)) for spans in histories if len(spans) > 1)
