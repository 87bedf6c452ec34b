import numpy as np
import pytest
import torch

from art_trainer.sampler import SamplingParams, sample, sampling_logprobs

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]]))


def kept(**params: float) -> list[list[int]]:
    logprobs = sampling_logprobs(LOGITS, SamplingParams(**params))
    return [torch.nonzero(row > -torch.inf)[:, 0].tolist() for row in logprobs]


def test_without_filters_the_distribution_is_the_softmax():
    assert torch.allclose(sampling_logprobs(LOGITS, SamplingParams()), LOGITS, atol=1e-6)


def test_temperature_divides_the_logits():
    logprobs = sampling_logprobs(LOGITS, SamplingParams(temperature=0.5))
    squared = LOGITS.exp() ** 2
    assert torch.allclose(logprobs.exp(), squared / squared.sum(-1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"top_k": 2}, [[0, 1], [2, 3]]),
        ({"top_k": 99}, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ({"top_p": 0.49}, [[0], [2, 3]]),
        ({"top_p": 0.74}, [[0, 1], [1, 2, 3]]),
        ({"top_p": 1e-9}, [[0], [3]]),
        ({"min_p": 0.4}, [[0, 1], [1, 2, 3]]),
        # The second row keeps 0.4, 0.3 and 0.2 of 0.9: the first two sum to 0.78, so the third stays too.
        ({"top_k": 3, "top_p": 0.8}, [[0, 1], [1, 2, 3]]),
    ],
)
def test_filters_keep_the_right_tokens(params, wanted):
    assert kept(**params) == wanted


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}, {"temperature": 3.0}])
def test_what_is_left_sums_to_one(params):
    logprobs = sampling_logprobs(LOGITS, SamplingParams(**params))
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(2), atol=1e-6)


def test_a_uniform_number_finds_its_place_in_the_cumulative_distribution():
    uniforms = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 0.9999999])
    tokens, logprobs = sample(LOGITS[:1].expand(8, -1), uniforms, SamplingParams())
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert torch.allclose(logprobs, LOGITS[0, tokens], atol=1e-6)


def test_frequencies_follow_the_probabilities():
    uniforms = torch.from_numpy(np.random.default_rng(0).random(40_000, dtype=np.float32))
    tokens, _ = sample(LOGITS[1:].expand(40_000, -1), uniforms, SamplingParams())
    frequencies = torch.bincount(tokens, minlength=4) / 40_000
    assert torch.allclose(frequencies, LOGITS[1].exp(), atol=0.01)


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


def test_greedy_takes_the_best_with_certainty():
    tokens, logprobs = sample(LOGITS, torch.zeros(2), SamplingParams(temperature=0))
    assert tokens.tolist() == [0, 3]
    assert logprobs.tolist() == [0.0, 0.0]


def test_half_precision_logits_are_sampled_in_single_precision():
    assert sampling_logprobs(LOGITS.bfloat16(), SamplingParams()).dtype == torch.float32


@pytest.mark.parametrize(
    ("params", "words"),
    [
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
