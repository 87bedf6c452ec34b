"""Log-probs of sampled tokens under a model, with as little computed as possible.

The decoder runs over whole rows, the language model head only at positions that predict a sampled token: with
long observations and a large vocabulary the head is most of the cost and nearly all of the memory. Rows that
are a tree go through the decoder as one row, in which only the attention knows of the tree.

Shape letters: U positions, V the vocabulary, N sampled tokens (several may be predicted at one position),
H the hidden size.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from art_trainer.errors import UnsupportedModelError
from art_trainer.models.loading import full_precision
from art_trainer.models.lora import base_model
from art_trainer.models.memory import WorkSizes
from art_trainer.models.packing import Batch, TokenRow, pack
from art_trainer.models.rotary import check_context
from art_trainer.models.tree_attention import can_prune, pruned, tree_attention

_log = logging.getLogger(__name__)

_HALF = (torch.float16, torch.bfloat16)

_LARGE_LOGIT = 300.0
"""Logits are tried at this size, which no model that caps them lets through."""


def token_logprobs_and_entropies(
    logits_UV: Tensor, predictors_N: Tensor, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return each token's log-prob [N] and each position's entropy [U], in nats.

    Between forward and backward only the probabilities are kept, and the gradient is written in one pass over
    them: with a large vocabulary the logits are the largest tensors of all. For a token :math:`y` predicted
    at a position with logits :math:`z`, probabilities :math:`p` and entropy :math:`H`,

    .. math:: \frac{\partial \log p_y}{\partial z_v} = [v = y] - p_v,\qquad
        \frac{\partial H}{\partial z_v} = -p_v (\log p_v + H)

    Args:
        logits_UV: Logits; those of 16 bits are computed with in float32.
        predictors_N: The position that predicts each token.
        targets_N: The tokens.
    """
    scores: tuple[Tensor, Tensor] = _TokenScores.apply(logits_UV, predictors_N, targets_N)  # type: ignore[no-untyped-call]
    return scores


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, predictors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        ctx.kind = logits.dtype
        logprobs = logits.log_softmax(-1, dtype=torch.float32 if logits.dtype in _HALF else None)
        picked = logprobs[predictors, targets]
        probabilities = logprobs.exp()
        entropies = -torch.linalg.vecdot(probabilities, logprobs)
        ctx.save_for_backward(probabilities, entropies, predictors, targets)
        ctx.set_materialize_grads(False)
        return picked, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, picked: Tensor | None, spread: Tensor | None) -> tuple[Tensor, None, None]:
        probabilities, entropies, predictors, targets = ctx.saved_tensors
        weights = probabilities.new_zeros(len(probabilities))
        if picked is not None:
            weights.index_put_((predictors,), -picked, accumulate=True)  # in a fixed order, on a GPU too
        if spread is not None:
            weights -= spread * entropies
        gradient = probabilities * weights[:, None]
        if spread is not None:
            gradient.addcmul_(torch.special.entr(probabilities), spread[:, None])
        if picked is not None:
            gradient.index_put_((predictors, targets), picked, accumulate=True)
        return gradient.to(ctx.kind), None, None


def rounding_tolerance(logits: Tensor) -> float:
    """How far two exact ways to compute these logits, or their log-probs, may differ.

    Four steps of half precision at the largest logit, which training makes large: after an imitation SmolLM2
    has logits of 32, where bfloat16 has steps of a quarter, and log-probs differ by 0.04 to 0.1 on average.
    """
    largest = float(logits.abs().max())
    return largest * 4 * torch.finfo(logits.dtype).eps if logits.dtype in _HALF else 1e-4 * max(1.0, largest)


class Scorer:
    """Scores batches with a Hugging Face causal language model.

    It works with any such model. The fast paths (head at selected positions only, pruned last layer, shared
    prefixes) are used if the model is built in the usual way and a probe of a few random tokens agrees with
    the model's own forward. The probe alone would not do: weights that are still small hide differences.

    Args:
        model: The model, maybe with PEFT adapters inside its layers.
        temperature: Log-probs are those of ``logits / temperature``.

    Raises:
        UnsupportedModelError: For PEFT's prompt learning methods: a token history has no virtual tokens.
    """

    def __init__(self, model: nn.Module, *, temperature: float = 1.0) -> None:
        for name, config in dict(getattr(model, "peft_config", {})).items():
            if config.is_prompt_learning:
                raise UnsupportedModelError(
                    f"adapter {name!r} ({config.peft_type}) puts virtual tokens before the prompt: use an "
                    "adapter inside the layers, such as LoRA"
                )
        self._model: Any = model
        base = base_model(model)
        self._decoder: Any = base.get_decoder()
        self._head: Any = base.get_output_embeddings()
        self._has_decoder = self._decoder is not base
        self._temperature = temperature
        self.device = next(model.parameters()).device
        self._most_logits = WorkSizes.of(self.device).logits
        config = base.config.get_text_config(decoder=True)
        self.hidden_size = int(config.hidden_size)
        self._layers = int(config.num_hidden_layers)
        self.shares_prefixes = False
        self._splits_head = False
        self.prunes = False
        self._probe(base)

    @full_precision()
    @torch.no_grad()
    def _probe(self, base: Any) -> None:
        """Find out which of the fast paths agree with the model's own forward."""
        rng = np.random.default_rng(0)
        vocabulary = int(base.config.get_text_config(decoder=True).vocab_size)
        start = rng.integers(vocabulary, size=20)
        rows = [_probe_row(np.concatenate([start, rng.integers(vocabulary, size=n)])) for n in (3, 5, 5)]
        batches = {share: next(pack(rows, 128, share=share, device=self.device)) for share in (False, True)}
        training = self._model.training
        self._model.eval()
        wanted = self._by_row(batches[False], rows)
        tolerance = rounding_tolerance(self._run(self._model, batches[False]).logits)

        def agrees(share: bool) -> bool:
            difference = float((self._by_row(batches[share], rows) - wanted).abs().mean())
            if share and difference >= tolerance:
                _log.warning(
                    "What attempts have in common is computed again for each in an update: computed once, it "
                    "changes log-probs by %.2g on average, more than the %.2g that rounding explains.",
                    difference,
                    tolerance,
                )
            return difference < tolerance

        splits = self._head is not None and self._has_decoder and self._only_head_follows(batches[False])
        self._splits_head = splits
        self._splits_head = splits and agrees(share=False)
        self.prunes = self._splits_head and can_prune(self._decoder)
        self.prunes = self.prunes and agrees(share=False)
        named_attention = getattr(base, "_supports_attention_backend", False)
        if named_attention and _has_plain_cache(base) and _passes_arguments(self._decoder):
            try:
                self.shares_prefixes = agrees(share=True) and self._all_layers_used(batches[True])
            except UnsupportedModelError:
                self.shares_prefixes = False
        self._model.train(training)

    def _only_head_follows(self, batch: Batch) -> bool:
        """Whether the model's logits are the head of the decoder's hidden states and nothing else.

        The hidden states are enlarged for it: on those of small weights a cap of the logits does not show.
        """
        hidden = self._run(self._decoder, batch).last_hidden_state
        if hidden.dtype != self._head.weight.dtype:  # as of Mamba, whose model casts them
            return False
        largest = self._head(hidden).abs().max()
        given: list[Tensor] = []

        def enlarge(module: Any, inputs: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state * (_LARGE_LOGIT / largest)
            given.append(output.last_hidden_state)
            return output

        handle = self._decoder.register_forward_hook(enlarge)
        found = self._run(self._model, batch).logits
        handle.remove()
        return bool((found - self._head(given[0])).abs().max() < rounding_tolerance(found))

    def _all_layers_used(self, batch: Batch) -> bool:
        """Whether every layer's attention was computed by the batch's tree, not by code of its own."""
        plans = [plan for plan in (batch.tree, batch.last_tree) if plan is not None]
        return len(set[int]().union(*(plan.users for plan in plans))) == self._layers

    def _by_row(self, batch: Batch, rows: Sequence[TokenRow]) -> Tensor:
        """Return a batch's log-probs in the order of these rows."""
        parts = torch.split(self.score(batch)[0], [row.targets.size for row in batch.rows])
        found = dict(zip(map(id, batch.rows), parts, strict=True))
        return torch.cat([found[id(row)] for row in rows])

    def hidden(self, batch: Batch) -> Tensor:
        """Return the last hidden states [N, H] of the positions that predict the sampled tokens.

        Raises:
            UnsupportedModelError: If the model has no decoder apart from its head.
        """
        if not self._has_decoder:
            raise UnsupportedModelError(
                f"{type(self._model).__name__} does not separate decoder and head, so there is no hidden "
                "state to read a value from: set advantage_estimator to one without a value head ('group')"
            )
        return self._hidden(batch).index_select(0, batch.predictors_N)

    def score(
        self, batch: Batch, *, entropy_gradient: bool = False, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return each sampled token's log-prob and the entropy of the distribution it is scored under.

        Args:
            batch: The batch; with shared prefixes only if :attr:`shares_prefixes`.
            entropy_gradient: Whether the entropies need a gradient, which costs memory.
            hidden: What :meth:`hidden` returned for the batch: the decoder does not run again then, unless
                the model's logits are not its head of them alone.

        Returns:
            Log-probs and entropies in nats, shapes [N], float32 or the model's dtype if that is wider.
        """
        if not self._splits_head:
            logits = self._run(self._model, batch).logits.flatten(0, 1)
            return self._pick(
                logits[batch.positions_U], batch.predictors_N, batch.targets_N, entropy_gradient
            )
        hidden = self._hidden(batch) if hidden is None else hidden.index_select(0, batch.some_N_U)
        size = max(self._most_logits // self._head.weight.shape[0], 1)
        if len(hidden) <= size:
            return self._pick(self._head(hidden), batch.predictors_N, batch.targets_N, entropy_gradient)
        return self._score_in_chunks(hidden, batch, size, entropy_gradient)

    @torch.no_grad()
    def map_logits(self, batch: Batch, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return a number for each sampled token [N] that depends on all logits of its distribution.

        Args:
            batch: The batch, as for :meth:`score`.
            compute: Takes the model's logits [n, V] for some of the tokens, and which tokens these are [n].
        """
        if self._splits_head:
            source, head = self._hidden(batch), self._head
        else:
            source, head = (
                self._run(self._model, batch).logits.flatten(0, 1)[batch.positions_U],
                nn.Identity(),
            )
        tokens = torch.arange(len(batch.targets_N), device=source.device)
        size = max(self._most_logits // head(source[:1]).shape[-1], 1)
        parts = [compute(head(source[batch.predictors_N[part]]), part) for part in torch.split(tokens, size)]
        return torch.cat(parts)

    def _score_in_chunks(
        self, hidden: Tensor, batch: Batch, size: int, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Score with the logits of ``size`` positions at a time.

        Each chunk scores all tokens, those of other chunks at any of its positions: which are its own only
        the device knows, and asking would wait for it.
        """

        def score_chunk(part: Tensor, predictors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return self._pick(self._head(part), predictors, targets, entropy_gradient)

        logprobs, entropies = None, None
        for start in range(0, len(hidden), size):
            part = hidden[start : start + size]
            predictors = batch.predictors_N - start
            places = predictors.clamp(0, len(part) - 1)
            found = _recomputed(score_chunk, part, places, batch.targets_N)
            if logprobs is None or entropies is None:
                logprobs, entropies = found
                continue
            own = predictors >= 0
            logprobs, entropies = (
                torch.where(own, mine, before)
                for mine, before in zip(found, (logprobs, entropies), strict=True)
            )
        assert logprobs is not None
        assert entropies is not None
        return logprobs, entropies

    def _pick(
        self, logits_UV: Tensor, predictors: Tensor, targets: Tensor, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the log-prob of each target under its predictor's logits, and the entropy of those."""
        if self._temperature != 1:
            logits_UV = (logits_UV.float() if logits_UV.dtype in _HALF else logits_UV) / self._temperature
        logprobs, spread = token_logprobs_and_entropies(logits_UV, predictors, targets)
        return logprobs, (spread if entropy_gradient else spread.detach())[predictors]

    def _hidden(self, batch: Batch) -> Tensor:
        """Return the last hidden states [U, H] of the positions that predict the sampled tokens."""
        if not self.prunes:
            hidden: Tensor = self._run(self._decoder, batch).last_hidden_state
            return hidden.flatten(0, 1).index_select(0, batch.positions_U)
        with pruned(self._decoder, batch.positions_U, batch.last_tree):
            pruned_hidden: Tensor = self._run(self._decoder, batch).last_hidden_state[0]
        return pruned_hidden

    def _run(self, module: Any, batch: Batch) -> Any:
        check_context(self._model, max(int(row.targets[-1]) for row in batch.rows))
        if batch.tree is None or batch.positions_Q is None:
            # Padding is on the right, and a causal model never looks there: no mask, the fastest attention.
            return module(input_ids=batch.ids_BQ, use_cache=False)
        with tree_attention(self._decoder.config):
            return module(
                input_ids=batch.ids_BQ,
                position_ids=batch.positions_Q[None],
                use_cache=False,
                tree=batch.tree,
            )


def _recomputed(
    function: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], *given: Tensor
) -> tuple[Tensor, Tensor]:
    """Call the function; with gradients on, keep only its inputs and call it again in backward."""
    if not torch.is_grad_enabled():
        return function(*given)
    result: tuple[Tensor, Tensor] = checkpoint(
        function, *given, use_reentrant=False, preserve_rng_state=False
    )
    return result


def _has_plain_cache(base: Any) -> bool:
    """Whether the cache holds keys and values of all tokens and nothing else: no window, no recurrence."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=base.config).layers)


def _passes_arguments(decoder: Any) -> bool:
    """Whether a decoder and its layers take further arguments and pass them on to their attention."""
    layers = list(getattr(decoder, "layers", ()))[:1]
    attentions = [layer.self_attn for layer in layers if hasattr(layer, "self_attn")]
    kinds = [
        {parameter.kind for parameter in inspect.signature(type(module).forward).parameters.values()}
        for module in (decoder, *layers, *attentions)
    ]
    takes_positions = "position_ids" in inspect.signature(decoder.forward).parameters
    return takes_positions and all(inspect.Parameter.VAR_KEYWORD in kind for kind in kinds)


def _probe_row(ids: Any) -> TokenRow:
    targets = np.arange(21, len(ids))
    zeros = np.zeros(len(targets), np.float32)
    return TokenRow(ids, targets, zeros, zeros, 0.0, 0)
