"""Log-probs of sampled tokens under a model, with as little computed as possible.

The decoder runs over whole rows, the language model head only where a sampled token is predicted: with long
observations and a large vocabulary the head is most of the cost and nearly all of the memory. A group's
common prompt goes through the decoder once; its keys and values are handed, differentiably, to every member.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from art_trainer.errors import UnsupportedModelError
from art_trainer.losses import entropy
from art_trainer.packing import Batch, Row, pack
from art_trainer.pruning import can_prune, pruned

_HALF = (torch.float16, torch.bfloat16)

LOGITS_PER_CHUNK = 2**24
"""Most logits held at a time; beyond it, the backward pass computes each chunk's logits again."""


class Scorer:
    """Scores batches with a Hugging Face causal language model.

    Works on any such model. The quick ways (head on selected positions, shared prefixes) are used where the
    model has the usual parts and a probe of a few random tokens agrees with the model's own forward.

    Args:
        model: The model, maybe with PEFT adapters inside its layers.
        temperature: Log-probs are those of ``logits / temperature``.

    Raises:
        UnsupportedModelError: For PEFT's prompt learning methods, whose virtual tokens have no place in a
            token history.
    """

    def __init__(self, model: nn.Module, *, temperature: float = 1.0) -> None:
        for name, config in dict(getattr(model, "peft_config", {})).items():
            if config.is_prompt_learning:
                raise UnsupportedModelError(
                    f"adapter {name!r} ({config.peft_type}) puts virtual tokens before the prompt: use an "
                    "adapter inside the layers, such as LoRA"
                )
        self._model: Any = model
        base: Any = self._model
        if hasattr(base, "get_base_model"):
            base = base.get_base_model()
        self._decoder: Any = base.get_decoder()
        self._head: Any = base.get_output_embeddings()
        self._has_decoder = self._decoder is not base
        self._temperature = temperature
        self.device = next(model.parameters()).device
        self.hidden_size = int(base.config.get_text_config(decoder=True).hidden_size)
        self.shares_prefixes = False
        self._splits_head = False
        self.prunes = False
        self._probe(base)

    @torch.no_grad()
    def _probe(self, base: Any) -> None:
        """Find out which of the quick ways agree with the model's own forward."""
        rng = np.random.default_rng(0)
        vocabulary = int(base.config.get_text_config(decoder=True).vocab_size)
        start = rng.integers(vocabulary, size=3)
        rows = [_probe_row(np.concatenate([start, rng.integers(vocabulary, size=n)])) for n in (3, 5)]
        batches = {share: next(pack(rows, 64, share=share, device=self.device)) for share in (False, True)}
        training = self._model.training
        self._model.eval()
        wanted = self.score(batches[False])[0].sum()
        tolerance = 0.1 if next(base.parameters()).dtype in _HALF else 1e-3
        self._splits_head = self._head is not None and self._has_decoder
        if self._splits_head:
            found = self.score(batches[False])[0].sum()
            self._splits_head = bool((found - wanted).abs() < tolerance)
        if self._splits_head and can_prune(self._decoder):
            self.prunes = True
            found = self.score(batches[False])[0].sum()
            self.prunes = bool((found - wanted).abs() < tolerance)
        if _has_plain_cache(base, self._decoder):
            self.shares_prefixes = True
            found = self.score(batches[True])[0].sum()
            self.shares_prefixes = bool((found - wanted).abs() < tolerance)
        self._model.train(training)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the last hidden states of the positions that predict the sampled tokens, shape [N, H].

        Raises:
            UnsupportedModelError: Where the model has no decoder apart from its head.
        """
        if not self._has_decoder:
            raise UnsupportedModelError(
                f"{type(self._model).__name__} does not part decoder and head, so there is no hidden state "
                "to read a value from: set advantage_estimator to one without a value head, such as 'group'"
            )
        return self._hidden(batch)

    def score(
        self, batch: Batch, *, entropy_gradient: bool = False, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return each sampled token's log-prob and the entropy of the distribution it is scored under.

        Args:
            batch: The batch; a shared one only where :attr:`shares_prefixes`.
            entropy_gradient: Whether the entropies need a gradient, which costs memory.
            hidden: What :meth:`hidden` returned for the batch, where it was asked: the decoder does not run
                again then, but for a model whose logits are not its head of them alone.

        Returns:
            Log-probs and entropies in nats, shapes [N], float32 or the model's dtype where that is more.
        """
        if not self._splits_head:
            logits = self._forward(self._model, batch).logits.flatten(0, 1)
            return self._pick(logits[batch.positions_N], batch.targets_N, entropy_gradient)
        if hidden is None:
            hidden = self._hidden(batch)
        size = max(LOGITS_PER_CHUNK // self._head.weight.shape[0], 1)
        if len(hidden) <= size:
            return self._pick(self._head(hidden), batch.targets_N, entropy_gradient)

        def score_chunk(part: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return self._pick(self._head(part), targets, entropy_gradient)

        chunks = zip(torch.split(hidden, size), torch.split(batch.targets_N, size), strict=True)
        parts = [_recomputed(score_chunk, part, targets) for part, targets in chunks]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([spread for _, spread in parts])

    def _pick(self, logits: Tensor, targets: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        if logits.dtype in _HALF:
            logits = logits.float()
        if self._temperature != 1:
            logits = logits / self._temperature
        logprobs = logits.log_softmax(-1)
        spread = entropy(logprobs if entropy_gradient else logprobs.detach())
        return logprobs.gather(-1, targets[:, None]).squeeze(-1), spread

    def _hidden(self, batch: Batch) -> Tensor:
        """Return the last hidden states [N, H] of the positions that predict the sampled tokens."""
        if not self.prunes:
            hidden: Tensor = self._forward(self._decoder, batch).last_hidden_state
            return hidden.flatten(0, 1).index_select(0, batch.positions_N)
        cache = self._read_prefixes(batch)
        with pruned(self._decoder, batch.positions_N):
            pruned_hidden: Tensor = self._continue(self._decoder, batch, cache).last_hidden_state[0]
        return pruned_hidden

    def _forward(self, module: Any, batch: Batch) -> Any:
        return self._continue(module, batch, self._read_prefixes(batch))

    def _read_prefixes(self, batch: Batch) -> Any:
        """Return the prefixes' keys and values, with their history; ``None`` where there is no prefix."""
        if batch.prefix_ids_PL is None:
            return None
        cache: Any = DynamicCache()
        # Nothing is predicted in a prefix: of its last layer only the keys and values are wanted.
        nowhere = batch.positions_N[:0]
        with pruned(self._decoder, nowhere) if self.prunes else nullcontext():
            self._decoder(input_ids=batch.prefix_ids_PL, past_key_values=cache, use_cache=True)
        return cache

    def _continue(self, module: Any, batch: Batch, cache: Any) -> Any:
        if cache is None:
            # Padding is on the right, where a causal model never looks: no mask, the quickest attention.
            return module(input_ids=batch.ids_BQ, use_cache=False)
        index = batch.prefix_index_B
        copies = [(x.keys.index_select(0, index), x.values.index_select(0, index)) for x in cache.layers]
        suffix = torch.arange(batch.ids_BQ.shape[1], device=self.device)
        return module(
            input_ids=batch.ids_BQ,
            attention_mask=_mask(batch, copies[0][0].dtype),
            position_ids=batch.prefix_lengths_B[:, None] + suffix,
            past_key_values=DynamicCache(copies),
            use_cache=True,
        )


def _mask(batch: Batch, dtype: torch.dtype) -> Tensor:
    """Return the additive mask [B, 1, Q, L + Q]: a row sees its own prefix, without padding, and its past."""
    assert batch.prefix_ids_PL is not None
    device = batch.ids_BQ.device
    rows, queries = batch.ids_BQ.shape
    prefix = torch.arange(batch.prefix_ids_PL.shape[1], device=device)
    hidden_prefix = (prefix >= batch.prefix_lengths_B[:, None])[:, None, None].expand(-1, 1, queries, -1)
    future = torch.ones(queries, queries, dtype=torch.bool, device=device).triu(1).expand(rows, 1, -1, -1)
    hidden = torch.cat([hidden_prefix, future], -1)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, torch.finfo(dtype).min)


def _recomputed(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], hidden: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Call the function; where a gradient is wanted, keep only its inputs and call it again in backward."""
    if not torch.is_grad_enabled():
        return function(hidden, targets)
    result: tuple[Tensor, Tensor] = checkpoint(
        function, hidden, targets, use_reentrant=False, preserve_rng_state=False
    )
    return result


def _has_plain_cache(base: Any, decoder: Any) -> bool:
    """Whether keys and values of all tokens are all that a token leaves behind, and a 4-D mask is obeyed."""
    if base.config._attn_implementation not in ("sdpa", "eager"):
        return False
    wanted = {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache"}
    if not wanted <= set(inspect.signature(decoder.forward).parameters):
        return False
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=base.config).layers)


def _probe_row(ids: Any) -> Row:
    targets = np.arange(4, len(ids))
    zeros = np.zeros(len(targets), np.float32)
    return Row(ids, targets, zeros, zeros, 0.0, 0)
