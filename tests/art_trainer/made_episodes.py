"""Episodes made by hand: random tokens in the shape of multi-turn play, with a model's own log-probs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from art_trainer.types import Ending, Episode, Group, Span, TokenHistory, Turn
from tests.art_trainer.tiny_models import full_logprobs


def made_history(
    model: torch.nn.Module, prompt: Sequence[int], turns: int, rng: np.random.Generator, vocabulary: int = 300
) -> TokenHistory:
    """A history of ragged replies and observations after a prompt."""
    pieces: list[tuple[list[int], int | None]] = [(list(prompt), None)]
    for turn in range(turns):
        pieces.append((rng.integers(vocabulary, size=rng.integers(1, 6)).tolist(), turn))
        pieces.append((rng.integers(vocabulary, size=rng.integers(1, 9)).tolist(), None))
    tokens = tuple(token for piece, _ in pieces for token in piece)
    # The weights' dtype differs between tests; episodes record float32, as a sampler does.
    logprobs = full_logprobs(model, tokens)
    spans, place = [], 0
    for piece, turn in pieces:
        values = logprobs[place - 1 : place - 1 + len(piece)].tolist() if turn is not None else []
        spans.append(Span(tuple(piece), turn, tuple(values)))
        place += len(piece)
    return TokenHistory(tuple(spans))


def made_episode(
    task: int, reward: float, histories: Sequence[TokenHistory], ending: Ending = Ending.TERMINATED
) -> Episode:
    """An episode with as many turns as the histories have, the last of them rewarded."""
    count = max((turn + 1 for history in histories for turn in history.turns), default=1)
    turns = [Turn("reply", "observation", 0.0) for _ in range(count - 1)]
    turns.append(Turn("reply", "observation", reward, score_terms={"outcome": reward}))
    return Episode(
        "made", f"task-{task}", task, "start", tuple(turns), tuple(histories), ending, success=reward > 0.5
    )


def made_groups(
    model: torch.nn.Module, *, groups: int = 3, size: int = 4, prompt: int = 20, seed: int = 0, turns: int = 3
) -> list[Group]:
    """Groups of ragged episodes; each group has its own prompt, of its own length."""
    rng = np.random.default_rng(seed)
    made = []
    for task in range(groups):
        start = rng.integers(300, size=prompt + 7 * task).tolist()
        members = []
        for _ in range(size):
            history = made_history(model, start, int(rng.integers(1, turns + 1)), rng)
            members.append(made_episode(task, float(rng.random()), [history]))
        made.append(Group(tuple(members)))
    return made
