"""Running a model over rows of which each process takes its share, whole groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art_trainer.config import GRPOConfig
from art_trainer.packing import Batch, Row, pack
from art_trainer.processes import Processes
from art_trainer.scoring import Scorer
from art_trainer.sharding import ShardedModel

T = TypeVar("T")


class SharedRunner:
    """Packs and computes this process's share of rows that all processes have.

    Args:
        config: How rows are packed.
        processes: Who shares.
        scorer: The scorer of the model that is trained.
        sharded: That model, where it lies in pieces.
    """

    def __init__(
        self, config: GRPOConfig, processes: Processes, scorer: Scorer, sharded: ShardedModel | None = None
    ) -> None:
        self._config = config
        self._processes = processes
        self._scorer = scorer
        self._sharded = sharded

    def batches(self, rows: Sequence[Row], scorer: Scorer) -> Iterator[tuple[Batch, bool]]:
        """Pack this process's share.

        A model in pieces computes in all processes or in none: one with fewer batches gets some of another's
        rows, for company. Its common prompts are not shared: a prompt's keys and values would need their
        layer's weights again at a moment that FSDP does not know of.

        Args:
            rows: The rows of all processes.
            scorer: What they are for.

        Yields:
            Batches, and whether they count.
        """
        costs: dict[int, int] = {}
        for row in rows:
            costs[row.group] = costs.get(row.group, 0) + len(row.token_ids)
        groups = list(costs)
        mine = {groups[index] for index in self._processes.share(list(costs.values()))}
        own = [row for row in rows if row.group in mine]
        in_pieces = self._in_pieces(scorer)
        share = self._config.share_prefixes and scorer.shares_prefixes and not in_pieces
        batches = pack(own, self._config.tokens_per_microbatch, share=share, device=scorer.device)
        if not in_pieces:
            yield from ((batch, True) for batch in batches)
            return
        packed = list(batches)
        most = max(self._processes.gather(len(packed)))
        yield from ((batch, True) for batch in packed)
        company = [row for row in rows if row.targets.size][:1]
        for _ in range(most - len(packed)):
            yield next(pack(company, 1, share=False, device=scorer.device)), False

    def run(self, scorer: Scorer, compute: Callable[[], T]) -> T:
        """Compute with a scorer's model, be it in pieces or not."""
        if self._sharded is None or not self._in_pieces(scorer):
            return compute()
        return self._sharded.run(compute)

    @torch.no_grad()
    def numbers(
        self, scorer: Scorer, rows: Sequence[Row], of_batch: Callable[[Batch], Tensor]
    ) -> list[NDArray[np.float32]]:
        """Return for each row the numbers of its targets, which ``of_batch`` gives for a whole batch."""
        nothing = np.zeros(0, np.float32)
        found = {id(row): nothing for row in rows if not row.targets.size}  # such rows are in no batch
        for batch, counts in self.batches(rows, scorer):
            numbers = self.run(scorer, partial(of_batch, batch)).cpu().numpy()
            if counts:
                ends = np.cumsum([row.targets.size for row in batch.rows])[:-1]
                found.update(zip(map(id, batch.rows), np.split(numbers, ends), strict=True))
        if self._processes.size == 1 or not rows:
            return [found[id(row)] for row in rows]
        # Each process knows the numbers of its own rows, and adds nothing to the others'.
        parts = [found.get(id(row), np.zeros(row.targets.size)) for row in rows]
        every = np.concatenate(parts, dtype=np.float64)
        self._processes.add_up(torch.from_numpy(every))
        ends = np.cumsum([row.targets.size for row in rows])[:-1]
        return [part.astype(np.float32) for part in np.split(every, ends)]

    def logprobs(self, scorer: Scorer, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """Return for each row the log-probs of its targets."""
        return self.numbers(scorer, rows, lambda batch: scorer.score(batch)[0])

    def _in_pieces(self, scorer: Scorer) -> bool:
        return self._sharded is not None and scorer is self._scorer
