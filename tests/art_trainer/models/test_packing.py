"""Histories become rows, and rows batches: each sampled token once, within the budget."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from art_trainer.models import packing
from art_trainer.models.packing import TokenRow, pack
from art_trainer.types import Span, TokenHistory
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.models.test_logprobs import rows_of
from tests.art_trainer.models.test_prefix_tree import random_rows
from tests.art_trainer.tiny_models import tiny_model

CPU = torch.device("cpu")


def row_of(*spans: Span, advantages: Sequence[float] = (1.0,)) -> TokenRow:
    return TokenRow.from_history(TokenHistory(spans), advantages_T=np.array(advantages), weight=0.1, group=0)


def test_a_row_begins_after_its_first_token_and_ends_with_its_last_sampled_one() -> None:
    row = row_of(Span((1, 2)), Span((3, 4), 0, (-1.0, -2.0)), Span((5, 6, 7)))
    assert (row.token_ids.tolist(), row.targets.tolist()) == ([1, 2, 3, 4], [2, 3])
    assert row.old_logprobs.tolist() == [-1.0, -2.0]
    first = row_of(Span((3, 4), 0, (-1.0, -2.0)))  # nothing predicts its first token
    assert (first.targets.tolist(), first.old_logprobs.tolist(), first.advantages.size) == ([1], [-2.0], 1)
    assert list(pack([row_of(Span((1, 2)))], 100, share=True, device=CPU)) == []


def test_each_token_has_the_advantage_of_its_turn() -> None:
    spans = (Span((1,)), Span((2, 3), 0, (-1.0, -1.0)), Span((4,)), Span((5,), 2, (-1.0,)))
    row = row_of(*spans, advantages=[0.5, 9.0, -2.0])
    (batch,) = pack([row], 100, share=False, device=CPU)
    assert row.advantages.tolist() == batch.advantages_N.tolist() == [0.5, 0.5, -2.0]


def test_all_sampled_tokens_are_packed_once_and_batches_keep_to_the_limit() -> None:
    rows = rows_of(made_groups(tiny_model(), groups=6, size=5))
    limit = 300
    for share in (False, True):
        batches = list(pack(rows, limit, share=share, device=CPU))
        packed = [id(row) for batch in batches for row in batch.rows]
        assert sorted(packed) == sorted(map(id, rows))
        assert all(batch.ids_BQ.numel() <= limit for batch in batches)


def test_padding_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_PADDING", 10)
    rows = rows_of(made_groups(tiny_model(), groups=6, size=5))
    for batch in pack(rows, 10_000, share=False, device=CPU):
        assert batch.ids_BQ.numel() - sum(int(row.targets[-1]) for row in batch.rows) <= 10


def made_row(*lengths: int, group: int = 0, begins: TokenRow | None = None, seed: int = 0) -> TokenRow:
    """A row of random tokens behind another row's, the last one sampled."""
    ids = np.random.default_rng(seed).integers(300, size=sum(lengths) + 1)
    if begins is not None:
        ids = np.concatenate([begins.token_ids[:-1], ids])
    zeros = np.zeros(1, np.float32)
    return TokenRow(ids, np.asarray([len(ids) - 1]), zeros, zeros, 1.0, group)


def test_rows_fill_batches_up_to_the_limit() -> None:
    rows = [made_row(90, seed=seed) for seed in range(10)]
    sizes = [batch.ids_BQ.numel() for batch in pack(rows, 300, share=True, device=CPU)]
    assert sizes == [270, 270, 270, 90]
    assert [b.ids_BQ.numel() for b in pack(rows[:2], 50, share=True, device=CPU)] == [90, 90]


def test_groups_share_their_instructions_too() -> None:
    system = made_row(400, seed=1)
    rows = [made_row(50, group=seed // 2, begins=system, seed=seed) for seed in range(8)]
    (batch,) = pack(rows, 4096, share=True, device=CPU)
    assert batch.ids_BQ.numel() == 400 + 8 * 50
    assert sum(b.ids_BQ.numel() for b in pack(rows, 620, share=True, device=CPU)) == 2 * 400 + 8 * 50


@pytest.mark.parametrize("limit", [25, 60, 10_000])
def test_a_trees_places_lead_to_its_rows_tokens(limit: int) -> None:
    rows = random_rows(np.random.default_rng(4), size=30)
    packed: list[TokenRow] = []
    for batch in pack(rows, limit, share=True, device=CPU):
        packed += batch.rows
        found = batch.positions_Q[batch.positions_U][batch.predictors_N] + 1
        assert found.tolist() == np.concatenate([row.targets for row in batch.rows]).tolist()
        assert batch.predictors_N[batch.some_N_U].tolist() == list(range(len(batch.positions_U)))
        assert len(batch.rows) == 1 or batch.ids_BQ.numel() <= limit
    assert sorted(map(id, packed)) == sorted(map(id, rows))


def test_equal_rows_are_computed_once() -> None:
    row = made_row(50)
    rows = [row] + [dataclasses.replace(row, group=group) for group in (0, 0, 1)]
    (batch,) = pack(rows, 1000, share=True, device=CPU)
    assert batch.ids_BQ.numel() == 50
    assert (len(batch.positions_U), len(batch.targets_N)) == (1, 4)
