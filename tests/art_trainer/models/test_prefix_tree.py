"""A group as a tree of tokens: what is shared is there once, and no number changes by it."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art_trainer.errors import UnsupportedModelError
from art_trainer.models import prefix_tree
from art_trainer.models.logprobs import Scorer
from art_trainer.models.packing import Batch, TokenRow, pack
from art_trainer.models.prefix_tree import build_tree
from art_trainer.models.tree_attention import (
    NAME,
    TreePlan,
    attend,
    attend_with_mask,
    tree_attention,
    tree_mask,
)
from tests.art_trainer.flash_kernels import stand_in
from tests.art_trainer.tiny_models import lora_model, tiny_model

CPU = torch.device("cpu")
FAMILIES = ["qwen2", "qwen3", "llama", "deepseek-v3"]
sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda ids: np.asarray(ids, np.int64)),
    min_size=1,
    max_size=10,
)


def free_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a node cost nothing."""
    monkeypatch.setattr(prefix_tree, "NODE_TOKENS", -1.0)
    monkeypatch.setattr(prefix_tree, "MERGE_TOKENS", 0.0)


@pytest.fixture(params=[True, False], ids=["every branching", "those that pay"])
def costs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        free_nodes(monkeypatch)


def random_ids(rng: np.random.Generator, *, vocabulary: int = 300, longest: int = 9) -> list[int]:
    return rng.integers(vocabulary, size=rng.integers(1, longest + 1)).tolist()


def random_rows(rng: np.random.Generator, *, groups: int = 3, size: int = 7) -> list[TokenRow]:
    """Ragged histories that leave each other anywhere: deep, equal, one the beginning of another, alone."""
    rows = []
    for group in range(groups):
        histories = [random_ids(rng, longest=30) + random_ids(rng)]
        for _ in range(int(rng.integers(size))):
            other = histories[rng.integers(len(histories))]
            kept = other[: rng.integers(2, len(other) + 1)]
            histories.append(kept + (random_ids(rng, longest=20) if rng.random() < 0.8 else []))
        for history in histories:
            ids = np.asarray(history, np.int64)
            targets = np.flatnonzero(rng.random(len(ids)) < 0.5)
            targets = np.union1d(targets[targets > 0], [len(ids) - 1])
            numbers = rng.normal(size=(3, len(targets))).astype(np.float32)
            rows.append(
                TokenRow(ids, targets, numbers[0], numbers[1], float(rng.random()), group, returns=numbers[2])
            )
    return rows


@given(sequences, st.booleans())
@settings(max_examples=100)
def test_every_sequence_is_in_the_tree_and_each_beginning_once_if_nodes_are_free(
    found: list[np.ndarray], free: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if free:
            free_nodes(patch)
        tree = build_tree(found)
    for ids, places in zip(found, tree.places, strict=True):
        assert tree.token_ids[places].tolist() == ids.tolist()
        assert tree.positions[places].tolist() == list(range(len(ids)))
    beginnings = {tuple(ids[:length].tolist()) for ids in found for length in range(1, len(ids) + 1)}
    assert len(tree.token_ids) <= (len(beginnings) if free else sum(map(len, found)))


@given(sequences)
@settings(max_examples=40)
def test_a_token_sees_its_own_beginning_and_nothing_else(found: list[np.ndarray]) -> None:
    tree = build_tree(found)
    wanted = np.zeros((len(tree.token_ids), len(tree.token_ids)), dtype=bool)
    for places in tree.places:
        for index, place in enumerate(places):
            wanted[place, places[: index + 1]] = True
    assert (tree_mask(tree.nodes, CPU).numpy() == wanted).all()


def test_a_branching_that_saves_too_little_is_not_used() -> None:
    def sizes(shared: int, rows: int, own: int) -> tuple[int, int]:
        start = np.arange(shared)
        tree = build_tree([np.concatenate([start, 1000 * (i + 1) + np.arange(own)]) for i in range(rows)])
        return len(tree.nodes), len(tree.token_ids)

    assert sizes(3, 2, 50) == (2, 106)
    assert sizes(30, 2, 50) == (3, 130)
    assert sizes(30, 2, 2000) == (2, 4060)  # merging 4,000 tokens' attention costs more
    assert sizes(20, 8, 1000) == (8, 8160)
    assert sizes(40, 8, 1000) == (9, 8040)
    assert sizes(0, 4, 10) == (4, 40)


def test_what_is_not_shared_may_still_be_shared_further_down() -> None:
    start, middle, ends = np.arange(2), np.arange(100, 160), [np.arange(200, 205), np.arange(300, 304)]
    rows = [np.concatenate([start, middle, end]) for end in ends] + [np.concatenate([start, [7, 8]])]
    tree = build_tree(rows)
    assert [node.last - node.first for node in tree.nodes] == [4, 62, 5, 4]
    assert [node.end for node in tree.nodes] == [4, 75, 71, 75]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [16, 12])
@pytest.mark.parametrize("chosen", [False, True])
def test_attention_by_parts_is_attention_with_a_mask(
    dtype: torch.dtype, channels: int, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_nodes(monkeypatch)
    rng = np.random.default_rng(1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        tree = build_tree([row.token_ids for row in random_rows(rng, groups=2)])
        count = len(tree.token_ids)
        places = np.sort(rng.permutation(count)[: 1 + count // 3]) if chosen else np.arange(count)
        shapes = ((len(places), 16), (count, 16), (count, channels), (len(places), channels))
        q, k, v, g = (torch.randn(1, 3, *shape, generator=generator, dtype=dtype) for shape in shapes)
        plan = TreePlan(tree.nodes, CPU, places if chosen else None)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        result = attend(q, k, v, plan.parts, 0.3)
        wanted = attend_with_mask(q, k, v, plan, 0.3)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        assert (result - wanted).abs().max() < tolerance
        found = torch.autograd.grad(result, inputs, g)
        for mine, theirs in zip(found, torch.autograd.grad(wanted, inputs, g), strict=True):
            assert (mine - theirs).abs().max() < 10 * tolerance


def numbers_of(
    model: torch.nn.Module, rows: Sequence[TokenRow], *, share: bool, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs, entropies and values by row, and a gradient through them and the hidden states."""
    scorer = Scorer(model, temperature=temperature)
    assert scorer.shares_prefixes
    model.zero_grad()
    found: dict[int, torch.Tensor] = {}
    for batch in pack(rows, 10_000, share=share, device=CPU):
        hidden = scorer.hidden(batch)
        logprobs, spread = scorer.score(batch, entropy_gradient=True, hidden=hidden)
        values = hidden.float().mean(-1)
        loss = (logprobs * batch.advantages_N * batch.weights_N).sum() + 0.3 * spread.sum()
        (loss if batch.returns_N is None else loss + (values * batch.returns_N).sum()).backward()
        together = torch.stack([logprobs, spread, values], -1).detach()
        sizes = [row.targets.size for row in batch.rows]
        found.update(zip(map(id, batch.rows), together.split(sizes), strict=True))
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return torch.cat([found[id(row)] for row in rows]), gradient


def same(found: Any, wanted: Any) -> None:
    assert (found[0] - wanted[0]).abs().max() < 1e-5
    assert (found[1] - wanted[1]).norm() < 5e-6 * wanted[1].norm()
    assert (found[1] - wanted[1]).abs().max() < 1e-5 * max(1, wanted[1].abs().max())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
def test_a_tree_gives_the_padded_rows_logprobs_and_gradients(family: str, lora: bool, costs: None) -> None:
    model = lora_model(family=family, scale=0.1) if lora else tiny_model(family)
    for seed in range(3):
        rows = random_rows(np.random.default_rng(seed))
        wanted = numbers_of(model, rows, share=False, temperature=0.8)
        same(numbers_of(model, rows, share=True, temperature=0.8), wanted)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["a mask", "flash attention"])
def test_the_ways_of_a_gpu_give_the_same(
    family: str, way: str, costs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    rows = random_rows(np.random.default_rng(5))
    alone = [row for row in rows if row.group == 0][:1]
    wanted = [numbers_of(model, rows, share=share) for rows in (rows, alone) for share in (True, False)]
    if way == "a mask":
        monkeypatch.setattr(TreePlan, "parts", property(lambda plan: plan))
        monkeypatch.setattr("art_trainer.models.tree_attention.attend", attend_with_mask)
    else:
        stand_in(monkeypatch)
    found = [numbers_of(model, rows, share=share) for rows in (rows, alone) for share in (True, False)]
    for mine, theirs in zip(found, wanted, strict=True):
        same(mine, theirs)


def test_half_precision_stays_within_its_rounding(costs: None) -> None:
    model = tiny_model()
    rows = random_rows(np.random.default_rng(2))
    exact, _ = numbers_of(model, rows, share=False)
    model.to(torch.bfloat16)
    padded, padded_gradient = numbers_of(model, rows, share=False)
    found, gradient = numbers_of(model, rows, share=True)
    assert (found - exact).abs().mean() < 1.5 * (padded - exact).abs().mean()
    assert (gradient - padded_gradient).norm() < 0.05 * padded_gradient.norm()


def test_the_models_attention_is_its_own_again() -> None:
    model = tiny_model()
    usual = model.config._attn_implementation
    ids = torch.arange(12)[None]
    wanted = model(input_ids=ids).logits
    with contextlib.suppress(KeyError), tree_attention(model.config):
        assert model.config._attn_implementation == NAME
        assert torch.equal(model(input_ids=ids).logits, wanted)  # without a tree it is the usual attention
        raise KeyError
    assert model.config._attn_implementation == usual


def test_attention_with_something_more_is_refused() -> None:
    model = tiny_model()
    batch: Batch = next(pack(random_rows(np.random.default_rng(0)), 1000, share=True, device=CPU))
    refused = pytest.raises(UnsupportedModelError, match="softcap cannot be computed")
    with tree_attention(model.config), refused:
        model(input_ids=batch.ids_BQ, use_cache=False, tree=batch.tree, softcap=30.0)


def test_layers_that_hand_nothing_on_are_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    layer = type(model.model.layers[0])
    usual = layer.forward

    def forward(
        self, x, attention_mask=None, position_ids=None, past_key_values=None, cache=None,
        position_embeddings=None, use_cache=False,
    ):  # fmt: skip
        # Transformers 5.24 names the cache anew.
        return usual(self, x, attention_mask, position_ids, position_embeddings=position_embeddings)

    monkeypatch.setattr(layer, "forward", forward)
    assert not Scorer(model).shares_prefixes
