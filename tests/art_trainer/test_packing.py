"""Histories become rows, and rows batches: each sampled token once, within the budget, at about one cost."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art_trainer import packing
from art_trainer.episodes import Span, TokenHistory
from art_trainer.packing import Grown, Row, balanced, pack
from art_trainer.prefix_tree import build_tree
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.test_prefix_tree import random_rows
from tests.art_trainer.test_scoring import rows_of
from tests.art_trainer.tiny_models import tiny_model

CPU = torch.device("cpu")


def test_a_row_ends_with_its_last_sampled_token() -> None:
    history = TokenHistory((Span((1, 2)), Span((3, 4), 0, (-1.0, -2.0)), Span((5, 6, 7))))
    row = Row.from_history(history, advantages_T=np.ones(1), weight=0.1, group=0)
    assert row.token_ids.tolist() == [1, 2, 3, 4]
    assert row.targets.tolist() == [2, 3]
    assert row.old_logprobs.tolist() == [-1.0, -2.0]


def test_a_first_token_that_nothing_predicts_is_left_out() -> None:
    history = TokenHistory((Span((3, 4), 0, (-1.0, -2.0)),))
    row = Row.from_history(history, advantages_T=np.ones(1), weight=0.1, group=0)
    assert (row.targets.tolist(), row.old_logprobs.tolist(), row.advantages.size) == ([1], [-2.0], 1)


def test_each_token_has_the_advantage_of_its_turn() -> None:
    spans = (Span((1,)), Span((2, 3), 0, (-1.0, -1.0)), Span((4,)), Span((5,), 2, (-1.0,)))
    row = Row.from_history(TokenHistory(spans), advantages_T=np.array([0.5, 9.0, -2.0]), weight=0.1, group=0)
    assert row.advantages.tolist() == [0.5, 0.5, -2.0]
    (batch,) = pack([row], 100, share=False, device=CPU)
    assert batch.advantages_N.tolist() == [0.5, 0.5, -2.0]


def test_rows_without_sampled_tokens_need_no_batch() -> None:
    row = Row.from_history(TokenHistory((Span((1, 2)),)), advantages_T=np.ones(1), weight=0.1, group=0)
    assert list(pack([row], 100, share=True, device=CPU)) == []


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


def made_row(length: int, group: int, rng: np.random.Generator) -> Row:
    zeros = np.zeros(1, np.float32)
    return Row(rng.integers(300, size=length + 1), np.asarray([length]), zeros, zeros, 1.0, group)


def grown(length: int) -> Grown:
    row = made_row(length, 0, np.random.default_rng(length))
    return Grown((row,), build_tree([row.token_ids[:length]]))


@given(st.lists(st.integers(1, 120), min_size=1, max_size=30), st.integers(100, 400))
@settings(max_examples=60)
def test_trees_are_spread_evenly_over_as_few_batches_as_hold_them(lengths: list[int], limit: int) -> None:
    batches = balanced([grown(length) for length in lengths], limit)
    sizes = [[piece.tokens for piece in batch] for batch in batches]
    assert sorted(size for batch in sizes for size in batch) == sorted(lengths)
    assert all(sum(batch) <= limit or len(batch) == 1 for batch in sizes)
    # A batch more than the average fills is needed only where two together are too large for one.
    assert len(batches) <= 2 * -(-sum(lengths) // limit)
    if all(sum(batch) < limit - max(lengths) for batch in sizes):  # no batch was closed to any piece
        costs = [sum(piece.cost for piece in batch) for batch in batches]
        assert max(costs) - min(costs) <= max(grown(length).cost for length in lengths)


def test_a_long_history_counts_for_more_than_its_tokens() -> None:
    batches = balanced([grown(4000), *(grown(100) for _ in range(50))], 6500)
    assert sorted(len(batch) for batch in batches) == [1, 50]


@pytest.mark.parametrize("limit", [25, 60, 10_000])
def test_a_trees_places_lead_to_its_rows_tokens(limit: int) -> None:
    rows = random_rows(np.random.default_rng(4), size=30)
    packed: list[Row] = []
    for batch in pack(rows, limit, share=True, device=CPU):
        packed += batch.rows
        assert batch.positions_Q is not None
        found = batch.positions_Q[batch.positions_U][batch.predictors_N] + 1
        assert found.tolist() == np.concatenate([row.targets for row in batch.rows]).tolist()
        assert batch.predictors_N[batch.some_N_U].tolist() == list(range(len(batch.positions_U)))
        assert len(batch.rows) == 1 or batch.ids_BQ.numel() <= limit
    assert sorted(map(id, packed)) == sorted(map(id, rows))


def test_several_groups_share_a_batch_and_no_token() -> None:
    rng = np.random.default_rng(0)
    rows = [made_row(50, 0, rng)]
    rows += [Row(rows[0].token_ids, *_rest(rows[0]), group) for group in (0, 0, 1)]
    (batch,) = pack(rows, 1000, share=True, device=CPU)
    assert batch.ids_BQ.numel() == 100  # group 0 once, group 1 once: they are not told apart by their tokens
    assert len(batch.positions_U) == 2


def _rest(row: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    return row.targets, row.old_logprobs, row.advantages, row.weight


def tokens_in(rows: Sequence[Row], *, share: bool) -> int:
    return sum(batch.ids_BQ.numel() for batch in pack(rows, 10_000, share=share, device=CPU))


def test_attempts_that_differ_at_once_cost_no_more_than_before() -> None:
    rng = np.random.default_rng(1)
    rows = [made_row(int(length), 0, rng) for length in rng.integers(20, 60, size=12)]
    assert tokens_in(rows, share=True) == sum(int(row.targets[-1]) for row in rows)
