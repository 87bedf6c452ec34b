import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from art_trainer import scoring
from art_trainer.episodes import Group
from art_trainer.errors import UnsupportedModelError
from art_trainer.packing import Row, pack
from art_trainer.scoring import Scorer
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import full_logprobs, tiny_model

CPU = torch.device("cpu")
# PEFT asks Transformers by a name that Transformers has renamed.
peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
SHARING = ["qwen2", "qwen3", "llama", "deepseek-v3"]


def rows_of(groups: Sequence[Group]) -> list[Row]:
    return [
        Row.from_history(history, advantages_T=np.full(9, float(i - j)), weight=1.0 + i, group=i)
        for i, group in enumerate(groups)
        for j, episode in enumerate(group.episodes)
        for history in episode.histories
    ]


def predicting_positions(rows: Sequence[Row]) -> int:
    """How many different beginnings of a group's histories a sampled token follows."""
    beginnings = {(row.group, *row.token_ids[:place].tolist()) for row in rows for place in row.targets}
    return len(beginnings)


def score_rows(
    model: torch.nn.Module, rows: Sequence[Row], *, share: bool, max_tokens: int = 10_000
) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
    """Each row's log-probs, and the gradient of their weighted sum."""
    scorer = Scorer(model)
    model.zero_grad()
    found: dict[int, torch.Tensor] = {}
    for batch in pack(rows, max_tokens, share=share, device=CPU):
        assert (batch.tree is not None) == share
        logprobs, _ = scorer.score(batch)
        (logprobs * batch.advantages_N * batch.weights_N).sum().backward()
        sizes = [row.targets.size for row in batch.rows]
        found.update(zip(map(id, batch.rows), logprobs.detach().split(sizes), strict=True))
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return found, gradient


@pytest.mark.parametrize("family", SHARING)
def test_a_shared_prompt_gives_the_same_logprobs_and_gradients(family: str) -> None:
    model = tiny_model(family)
    rows = rows_of(made_groups(model))
    plain, plain_gradient = score_rows(model, rows, share=False)
    shared, shared_gradient = score_rows(model, rows, share=True)
    for row in rows:
        assert torch.allclose(shared[id(row)], plain[id(row)], atol=1e-5, rtol=0)
    assert (shared_gradient - plain_gradient).norm() <= 1e-6 * plain_gradient.norm()


@pytest.mark.parametrize("family", [*SHARING, "mistral-sliding"])
def test_logprobs_are_those_of_the_models_own_forward(family: str) -> None:
    model = tiny_model(family)
    rows = rows_of(made_groups(model))
    scorer = Scorer(model)
    with torch.no_grad():
        for batch in pack(rows, 10_000, share=scorer.shares_prefixes, device=CPU):
            logprobs, _ = scorer.score(batch)
            wanted = np.concatenate([row.old_logprobs for row in batch.rows])
            assert logprobs.numpy() == pytest.approx(wanted, abs=1e-5)


def test_prefixes_are_not_shared_where_keys_and_values_do_not_tell_all() -> None:
    assert all(Scorer(tiny_model(family)).shares_prefixes for family in SHARING)
    assert not Scorer(tiny_model("mistral-sliding")).shares_prefixes


@pytest.mark.parametrize("family", SHARING)
def test_the_last_layer_is_computed_where_it_is_looked_at_and_changes_nothing(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    rows = rows_of(made_groups(model))
    assert Scorer(model).prunes
    fed: list[int] = []
    hook = model.model.layers[-1].mlp.register_forward_hook(lambda *call: fed.append(call[2].shape[1]))
    found, gradient = score_rows(model, rows, share=True)
    hook.remove()
    assert fed[-1] == predicting_positions(rows)
    monkeypatch.setattr(scoring, "can_prune", lambda decoder: False)
    whole, whole_gradient = score_rows(model, rows, share=True)
    for row in rows:
        assert torch.allclose(found[id(row)], whole[id(row)], atol=1e-5, rtol=0)
    assert (gradient - whole_gradient).norm() <= 1e-6 * whole_gradient.norm()


def test_a_layer_put_together_otherwise_is_not_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    kind = type(model.model.layers[-1])
    usual = kind.forward
    # As in models that add the feed-forward part beside the attention.
    monkeypatch.setattr(kind, "forward", lambda self, x, **given: usual(self, x, **given) + self.mlp(x))
    assert not Scorer(model).prunes


def test_a_layer_whose_forward_was_replaced_is_not_pruned() -> None:
    model = tiny_model()
    layer = model.model.layers[-1]
    layer.forward = layer.forward
    assert not Scorer(model).prunes


@pytest.mark.parametrize("share", [False, True])
def test_the_cut_into_batches_changes_no_result(share: bool) -> None:
    model = tiny_model()
    rows = rows_of(made_groups(model))
    whole, whole_gradient = score_rows(model, rows, share=share)
    parts, parts_gradient = score_rows(model, rows, share=share, max_tokens=110)
    assert len(list(pack(rows, 110, share=share, device=CPU))) >= 3
    for row in rows:
        assert torch.allclose(parts[id(row)], whole[id(row)], atol=1e-5, rtol=0)
    assert (parts_gradient - whole_gradient).norm() <= 1e-6 * whole_gradient.norm()


def test_logits_in_chunks_give_the_same_and_remember_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    rows = rows_of(made_groups(model))
    whole, whole_gradient = score_rows(model, rows, share=False)
    monkeypatch.setattr(scoring, "LOGITS_PER_CHUNK", 300 * 7)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        chunks, chunks_gradient = score_rows(model, rows, share=False)
    assert all(torch.allclose(chunks[id(row)], whole[id(row)], atol=1e-5) for row in rows)
    assert (chunks_gradient - whole_gradient).norm() <= 1e-6 * whole_gradient.norm()
    assert sum(size == 300 * 7 for size in kept) <= 2 * len(rows) * 3  # only while one chunk is recomputed


def test_the_head_runs_only_where_a_sampled_token_is_predicted() -> None:
    model = tiny_model()
    rows = rows_of(made_groups(model))
    scorer = Scorer(model)
    seen: list[int] = []
    hook = model.lm_head.register_forward_hook(lambda *call: seen.append(call[2].shape[0]))
    for batch in pack(rows, 10_000, share=True, device=CPU):
        scorer.score(batch)
    hook.remove()
    assert sum(seen) == predicting_positions(rows) < sum(row.targets.size for row in rows)


def test_a_head_with_scaled_logits_is_noticed() -> None:
    class Scaled(type(tiny_model())):  # type: ignore[misc]
        def forward(self, *args: object, **kwargs: object) -> object:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits / 3
            return output

    model = tiny_model()
    rows = rows_of(made_groups(model))
    model.__class__ = Scaled
    scorer = Scorer(model)
    batch = next(pack(rows[:1], 10_000, share=False, device=CPU))
    with torch.no_grad():
        logprobs = scorer.score(batch)[0].numpy()
    ids = tuple(rows[0].token_ids.tolist())
    assert logprobs == pytest.approx(full_logprobs(model, ids)[rows[0].targets - 1], abs=1e-5)


def test_temperature_divides_the_logits() -> None:
    model = tiny_model()
    row = rows_of(made_groups(model))[0]
    batch = next(pack([row], 10_000, share=False, device=CPU))
    with torch.no_grad():
        logprobs = Scorer(model, temperature=0.7).score(batch)[0].numpy()
    wanted = full_logprobs(model, tuple(row.token_ids.tolist()), temperature=0.7)[row.targets - 1]
    assert logprobs == pytest.approx(wanted, abs=1e-5)


def test_entropy_gradient_is_there_only_where_asked_for() -> None:
    model = tiny_model()
    batch = next(pack(rows_of(made_groups(model)), 10_000, share=False, device=CPU))
    scorer = Scorer(model)
    assert not scorer.score(batch)[1].requires_grad
    _, entropies = scorer.score(batch, entropy_gradient=True)
    entropies.sum().backward()
    assert model.lm_head.weight.grad.abs().sum() > 0


@peft
def test_adapters_inside_the_layers_are_scored_and_trained() -> None:
    model = tiny_model()
    rows = rows_of(made_groups(model))
    adapted = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    adapted.eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)
    found, gradient = score_rows(adapted, rows, share=True)
    wanted = full_logprobs(adapted, tuple(rows[0].token_ids.tolist()))[rows[0].targets - 1]
    assert found[id(rows[0])].numpy() == pytest.approx(wanted, abs=1e-5)
    assert gradient.abs().sum() > 0


@peft
def test_virtual_prompt_tokens_are_refused() -> None:
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    adapted = get_peft_model(tiny_model(), config)
    with pytest.raises(UnsupportedModelError, match="virtual tokens before the prompt"):
        Scorer(adapted)
