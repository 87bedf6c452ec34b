import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from art_trainer.config import GRPOConfig
from art_trainer.inference import sampling
from art_trainer.inference.generation import SamplingModel, TokenSequence
from art_trainer.inference.sampling import SamplingParams, penalize_repetition, sample, sampling_logprobs
from tests.art_trainer.tiny_models import tiny_model

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]]))


def test_temperature_divides_the_logits():
    assert torch.allclose(sampling_logprobs(LOGITS, SamplingParams()), LOGITS, atol=1e-6)
    logprobs = sampling_logprobs(LOGITS, SamplingParams(temperature=0.5))
    squared = LOGITS.exp() ** 2
    assert torch.allclose(logprobs.exp(), squared / squared.sum(-1, keepdim=True), atol=1e-6)


def test_greedy_takes_the_best_with_certainty():
    tokens, logprobs = sample(LOGITS, torch.zeros(2), SamplingParams(temperature=0))
    assert tokens.tolist() == [0, 3]
    assert logprobs.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"top_k": 2}, [[0, 1], [2, 3]]),
        ({"top_k": 99}, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ({"top_p": 0.49}, [[0], [2, 3]]),
        ({"top_p": 0.74}, [[0, 1], [1, 2, 3]]),
        ({"top_p": 1e-300}, [[0], [3]]),
        ({"min_p": 0.4}, [[0, 1], [1, 2, 3]]),
        # The second row keeps 0.4, 0.3 and 0.2 of 0.9: the first two sum to 0.78, so the third stays too.
        ({"top_k": 3, "top_p": 0.8}, [[0, 1], [1, 2, 3]]),
    ],
)
def test_filters_keep_the_right_tokens(params, wanted):
    logprobs = sampling_logprobs(LOGITS, SamplingParams(**params))
    assert [torch.nonzero(row > -torch.inf)[:, 0].tolist() for row in logprobs] == wanted
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(2), atol=1e-6)


def test_half_precision_is_sampled_and_penalised_in_single_precision():
    assert sampling_logprobs(LOGITS.bfloat16(), SamplingParams()).dtype == torch.float32
    assert penalize_repetition(LOGITS.bfloat16(), [[0], [1]], 1.3).dtype == torch.float32


def test_a_uniform_number_finds_its_place_in_the_cumulative_distribution():
    uniforms = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 0.9999999])
    tokens, logprobs = sample(LOGITS[:1].expand(8, -1), uniforms, SamplingParams())
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert torch.allclose(logprobs, LOGITS[0, tokens], atol=1e-6)


def test_a_dropped_token_is_never_sampled_and_edges_stay_inside():
    logits = torch.full((3, 1000), 0.0)
    logits[:, 500] = 5.0
    uniforms = torch.tensor([0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
    tokens, logprobs = sample(logits, uniforms, SamplingParams(top_k=1))
    assert tokens.tolist() == [500, 500, 500]
    assert logprobs.tolist() == [0.0, 0.0, 0.0]
    masked = torch.full((1, 1000), -torch.inf)
    masked[0, :3] = 0.0
    tokens, logprobs = sample(masked, uniforms[2:], SamplingParams())
    assert tokens.tolist() == [2]
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("penalty", [1.7, 0.6])
def test_a_repetition_penalty_is_that_of_transformers(penalty):
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(3, 20)).astype(np.float32))
    contexts = rng.integers(20, size=(3, 9))
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(torch.from_numpy(contexts), logits.clone())
    assert torch.equal(penalize_repetition(logits, contexts.tolist(), penalty), wanted)
    # Rows of unequal length, one of them empty, and a token that the head does not know.
    ragged = penalize_repetition(logits, [[3, 3, 3], [], [4, 25]], penalty)
    changed = torch.nonzero(ragged != logits).tolist()
    assert changed == [[0, 3], [2, 4]]


def test_the_penalised_distribution_is_the_one_sampled_from():
    params = SamplingParams(repetition_penalty=2.0, temperature=0.7, top_k=3)
    sequences = [TokenSequence([0, 2]), TokenSequence([3])]
    for sequence in sequences:
        sequence.begin_turn(np.array([0.3], np.float32))
    SamplingModel(tiny_model(), params).sample_into(sequences, LOGITS)
    penalised = LOGITS.clone()  # logarithms of probabilities are negative
    penalised[0, [0, 2]] *= 2
    penalised[1, 3] *= 2
    for row, (context, sequence) in enumerate(zip([[0, 2], [3]], sequences, strict=True)):
        scaled = penalised[row] / 0.7
        scaled[scaled < scaled.topk(3).values[-1]] = -torch.inf
        assert sequence.tokens[:-1] == context
        assert sequence.logprobs == [pytest.approx(float(scaled.log_softmax(-1)[sequence.tokens[-1]]))]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"stop_strings": ("a", "")}, "stop_strings"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_values_out_of_range_are_named(params, words):
    with pytest.raises(ValueError, match=words):
        SamplingParams(**params)


def test_parameters_of_a_config():
    config = GRPOConfig(
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.2, stop_strings=("red", "!"),
        max_completion_length=5, eval_temperature=0.3,
    )  # fmt: skip
    training = SamplingParams.for_training(config, (7,))
    assert training == SamplingParams(0.7, 0.9, 40, 0.1, 1.2, 5, (7,), ("red", "!"))
    evaluation = SamplingParams.for_evaluation(config, (7,))
    assert evaluation == SamplingParams(0.3, max_new_tokens=5, stop_token_ids=(7,), stop_strings=("red", "!"))
    assert SamplingParams.for_training(GRPOConfig(min_p=None)).min_p == 0


def test_a_cumulative_sum_that_falls_leads_to_no_token_of_probability_0(monkeypatch):
    """As on GPUs, which sum in blocks."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 2000, generator=generator)
    params = SamplingParams(top_p=0.3)
    usual, exact = torch.Tensor.cumsum, sampling_logprobs(logits, params)

    def falling(values, dim):
        total = usual(values, dim=dim)
        shaken = values.shape == exact.shape
        return total + 1e-3 * torch.rand(total.shape, generator=generator) if shaken else total

    monkeypatch.setattr(sampling, "sampling_logprobs", lambda given, params: exact)
    monkeypatch.setattr(torch.Tensor, "cumsum", falling)
    dropped = 0
    for _ in range(20):
        uniforms = torch.rand(64, generator=generator)
        point = uniforms[:, None] * falling(exact.exp(), -1)[:, -1:]
        found = torch.searchsorted(falling(exact.exp(), -1), point, right=True).clamp(max=1999)
        dropped += int(exact.gather(-1, found).isneginf().sum())
        tokens, logprobs = sample(logits, uniforms, params)
        assert logprobs.isfinite().all()
        assert torch.equal(logprobs, exact.gather(-1, tokens[:, None])[:, 0])
    assert dropped > 0, "a plain search finds some"
