"""A prompt kept once for many rows, against attention over a copy of it in each row."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

from art_trainer.inference import kv_cache, slot_decoder
from art_trainer.inference.cache_attention import SharedPrefixes
from art_trainer.inference.kv_cache import SlotCache
from art_trainer.inference.sampling import SamplingParams
from tests.art_trainer.inference.test_transformers_policy import VOCABULARY, make_policy, played
from tests.art_trainer.tiny_models import largest_error, tiny_model


class _Layer:
    layer_idx = 0


def states(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=generator).to(dtype)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize(
    "prefixes",
    [
        [(0, 9), (0, 9), (0, 9)],
        [(2, 7), None, (0, 9), (2, 4), (0, 1), None, (2, 7)],
        [(5, 3), (0, 9), (0, 9), (5, 2)],
    ],
    ids=["one prompt", "two prompts, partly seen", "far apart"],
)
def test_it_is_attention_over_prompt_and_row(prefixes, queries, key_heads):
    generator = torch.Generator().manual_seed(1)
    rows, heads, dim, own_width = len(prefixes), 4, 8, 6
    cache = SlotCache(1)
    cache.reserve(6, 16, shared=True)
    prompts = states(generator, 2, 6, key_heads, 16, dim)
    cache.slots[0].shared.states = tuple(prompts)
    query = states(generator, rows, heads, queries, dim)
    key, value = states(generator, 2, rows, key_heads, own_width, dim)
    mask = torch.zeros(rows, 1, queries, own_width)
    mask[:, :, :, 1:][torch.rand(rows, 1, queries, own_width - 1, generator=generator) < 0.4] = -1e30
    shared = SharedPrefixes(cache, prefixes, torch.device("cpu"))
    found, _ = shared.attend(_Layer(), query, key, value, mask, scaling=0.3)
    for row, prefix in enumerate(prefixes):
        prompt, seen = prefix or (0, 0)
        keys = torch.cat([prompts[0, prompt, :, :seen], key[row]], 1).repeat_interleave(heads // key_heads, 0)
        values = torch.cat([prompts[1, prompt, :, :seen], value[row]], 1).repeat_interleave(
            heads // key_heads, 0
        )
        whole = torch.cat([torch.zeros(queries, seen), mask[row, 0]], 1)
        wanted = F.scaled_dot_product_attention(query[row], keys, values, attn_mask=whole, scale=0.3)
        torch.testing.assert_close(found[row].transpose(0, 1), wanted, atol=2e-6, rtol=0)


def test_sharing_changes_no_token(monkeypatch):
    model = tiny_model("qwen3", vocab_size=VOCABULARY)
    tokens = []
    for least in (1, 10**9):
        monkeypatch.setattr(slot_decoder, "_SHARE_FROM", least)
        episodes = played(make_policy(model=model, max_batch=7))
        tokens.append([h.token_ids for e in episodes for h in e.histories])
    assert tokens[0] == tokens[1]
    assert model.config._attn_implementation == "sdpa"  # the model's own attention is back


def test_other_attentions_keep_a_copy_in_each_row():
    """DeepSeek-V3 computes its keys from what is cached, so the cache's are not those of the attention."""
    assert not make_policy("deepseek-v3")._decoder.shares
    model = tiny_model("qwen2", vocab_size=VOCABULARY)
    model.set_attn_implementation("eager")
    policy = make_policy(model=model)
    assert not policy._decoder.shares
    assert largest_error(policy.model, played(policy, seeds=2)) < 1e-5


def test_the_tables_of_another_sampling_are_freed_at_once():
    policy = make_policy()
    played(policy, 1, 2, 1)
    cache = weakref.ref(policy._decoder._cache)
    gc.disable()
    try:
        policy.sampling = SamplingParams(temperature=0.0)
        assert cache() is None
    finally:
        gc.enable()


def test_a_rollout_begins_with_the_room_that_the_last_one_came_to(monkeypatch):
    monkeypatch.setattr(kv_cache, "SMALL_TABLES", 0)
    cache = SlotCache(1)
    for positions in (40, 70, 200):
        cache.reserve(3, positions)
    cache.clear()
    cache.reserve(2, 5)
    assert (cache.capacity.rows, cache.capacity.positions, cache.version) == (2, 256, 5)
