from collections.abc import Sequence

import numpy as np
import pytest
import torch
from peft import PromptTuningConfig, get_peft_model

from art_trainer.errors import UnsupportedModelError
from art_trainer.models import logprobs as scoring
from art_trainer.models.logprobs import Scorer, token_logprobs_and_entropies
from art_trainer.models.memory import WorkSizes
from art_trainer.models.packing import TokenRow, pack
from art_trainer.types import Group
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.models.test_prefix_tree import FAMILIES, numbers_of, same
from tests.art_trainer.tiny_models import full_logprobs, tiny_model

CPU = torch.device("cpu")


def rows_of(groups: Sequence[Group]) -> list[TokenRow]:
    return [
        TokenRow.from_history(history, advantages_T=np.full(9, float(i - j)), weight=1.0 + i, group=i)
        for i, group in enumerate(groups)
        for j, episode in enumerate(group.episodes)
        for history in episode.histories
    ]


def predicting_positions(rows: Sequence[TokenRow]) -> int:
    """How many different beginnings of a group's histories a sampled token follows."""
    return len({(row.group, *row.token_ids[:place].tolist()) for row in rows for place in row.targets})


@pytest.mark.parametrize("family", [*FAMILIES, "mistral-sliding", "falcon"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_models_own_forward(family: str, temperature: float) -> None:
    model = tiny_model(family)
    rows = rows_of(made_groups(model))
    scorer = Scorer(model, temperature=temperature)
    assert scorer.shares_prefixes == (family in FAMILIES)
    with torch.no_grad():
        for batch in pack(rows, 10_000, share=scorer.shares_prefixes, device=CPU):
            logprobs, _ = scorer.score(batch)
            wanted = [
                full_logprobs(model, tuple(row.token_ids.tolist()), temperature)[row.targets - 1]
                for row in batch.rows
            ]
            assert logprobs.numpy() == pytest.approx(np.concatenate(wanted), abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_is_computed_where_it_is_looked_at_and_changes_nothing(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    rows = rows_of(made_groups(model))
    assert Scorer(model).prunes
    fed, headed = list[int](), list[int]()
    hook = model.model.layers[-1].mlp.register_forward_hook(lambda *call: fed.append(call[2].shape[1]))
    head_hook = model.lm_head.register_forward_hook(lambda *call: headed.append(call[2].shape[0]))
    found = numbers_of(model, rows, share=True)
    hook.remove()
    head_hook.remove()
    assert fed[-1] == headed[-1] == predicting_positions(rows) < sum(row.targets.size for row in rows)
    monkeypatch.setattr(scoring, "can_prune", lambda decoder: False)
    same(found, numbers_of(model, rows, share=True))


def test_a_layer_that_was_replaced_is_not_pruned() -> None:
    model = tiny_model()
    layer = model.model.layers[-1]
    layer.forward = layer.forward  # as libraries that move weights do
    assert not Scorer(model).prunes
    del layer.forward
    assert Scorer(model).prunes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "splits", "prunes", "shares"),
    [
        ("llama", True, True, True),
        ("gemma2", False, False, False),  # four norms, a cap of the logits
        ("gpt-oss", True, True, False),  # experts return a pair, attention has sinks
        ("nemotron", True, True, False),  # attention of its own
        ("doge", True, False, False),  # weights of the residuals, a mask of its own
    ],
)
def test_fast_paths_are_chosen_by_structure_also_where_weights_are_small(
    family: str, splits: bool, prunes: bool, shares: bool, dtype: torch.dtype
) -> None:
    model = tiny_model(family, initializer_range=0.002).to(dtype)
    scorer = Scorer(model)
    assert (scorer._splits_head, scorer.prunes, scorer.shares_prefixes) == (splits, prunes, shares)
    model.float().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(60)
    (batch,) = pack(rows_of(made_groups(model, groups=1)), 10_000, share=shares, device=CPU)
    found = torch.split(scorer.score(batch)[0], [row.targets.size for row in batch.rows])
    for row, logprobs in zip(batch.rows, found, strict=True):
        wanted = full_logprobs(model, tuple(row.token_ids.tolist()))[row.targets - 1]
        assert logprobs.numpy() == pytest.approx(wanted, rel=1e-4, abs=1e-3)


def test_hidden_states_of_another_type_than_the_heads_are_left_to_the_model() -> None:
    assert not Scorer(tiny_model("mamba").bfloat16())._splits_head


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "deepseek-v3"])
def test_the_large_logits_of_trained_weights_switch_no_fast_path_off(family: str) -> None:
    model = tiny_model(family).bfloat16()
    model.get_output_embeddings().weight.data *= 20
    scorer = Scorer(model)
    assert (scorer._splits_head, scorer.prunes, scorer.shares_prefixes) == (True, True, True)


def test_logits_in_chunks_give_the_same_and_remember_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    rows = rows_of(made_groups(model))
    whole = numbers_of(model, rows, share=False)
    monkeypatch.setattr(scoring.WorkSizes, "of", lambda device: WorkSizes(4096, 300 * 7, 4096))
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        same(numbers_of(model, rows, share=False), whole)
    assert sum(size == 300 * 7 for size in kept) <= 2 * len(rows) * 3  # only while one chunk is recomputed


def test_entropy_gradient_is_there_only_where_asked_for() -> None:
    model = tiny_model()
    batch = next(pack(rows_of(made_groups(model)), 10_000, share=False, device=CPU))
    for wanted in (True, False):
        assert Scorer(model).score(batch, entropy_gradient=wanted)[1].requires_grad == wanted


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_virtual_prompt_tokens_are_refused() -> None:
    adapted = get_peft_model(tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(UnsupportedModelError, match="virtual tokens before the prompt"):
        Scorer(adapted)


PREDICTORS = torch.tensor([0, 0, 3, 2, 0])
TARGETS = torch.tensor([4, 1, 6, 0, 4])


def test_values_and_gradients_are_those_of_the_log_softmax() -> None:
    def results(own: bool) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
        logprobs, spread = token_logprobs_and_entropies(logits, PREDICTORS, TARGETS)
        if not own:
            every = logits.log_softmax(-1)
            logprobs, spread = every[PREDICTORS, TARGETS], -(every.exp() * every).sum(-1)
        factors = torch.arange(1.0, 6.0, dtype=torch.float64)
        gradients = [torch.autograd.grad(x, logits, factors, retain_graph=True) for x in (logprobs, spread)]
        both = torch.autograd.grad([logprobs, spread], logits, [0.7 * factors, -0.3 * factors])
        return [logprobs, spread, *(gradient for (gradient,) in gradients), *both]

    for found, wanted in zip(results(own=True), results(own=False), strict=True):
        assert (found - wanted).abs().max() < 1e-12


def test_a_probability_of_nothing_has_no_gradient() -> None:
    logits = torch.tensor([[0.0, 200.0, -200.0]], requires_grad=True)
    logprobs, spread = token_logprobs_and_entropies(logits, torch.tensor([0]), torch.tensor([1]))
    (logprobs.sum() + spread.sum()).backward()
    assert (logprobs.tolist(), spread.tolist()) == ([0.0], [0.0])
    assert logits.grad.abs().max() == 0
