import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, JudgingError, Step, judge_group
from art_gym.wrappers.judging.agreement import judged_tau
from benchmarks.noisy_judge import NoisyJudge


def group_of(rewards, words="go"):
    return [
        Attempt(f"a{i}", "Do it.", (Step(f"{words} {i}", "done", reward),))
        for i, reward in enumerate(rewards)
    ]


def scores_of(judge, group):
    found = judge_group(judge, group)
    return [found[attempt.id].value for attempt in group]


def test_without_noise_it_ranks_by_the_reward_and_ties_share_their_places():
    assert scores_of(NoisyJudge(0.0), group_of([5, -1, 2])) == [1, 0, 0.5]
    assert scores_of(NoisyJudge(0.0), group_of([1, 0, 1, 0])) == pytest.approx([5 / 6, 1 / 6, 5 / 6, 1 / 6])
    assert scores_of(NoisyJudge(0.0), group_of([3, 3])) == [0.5, 0.5]
    assert scores_of(NoisyJudge(0.7), group_of([3])) == [0.5]


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rewards", [[0, 1, 2, 3, 4], [0, 0, 1, 1, 1, 5], [0, 1]])
def test_expected_tau_and_advantage_are_1_minus_noise(noise, rewards):
    """Over many groups; ties change nothing. The bounds are four standard errors of a mean of 2000."""
    judge = NoisyJudge(noise, seed=1)
    perfect = np.array(scores_of(NoisyJudge(0.0), group_of(rewards)))
    scores = np.array([scores_of(judge, group_of(rewards, f"word {k}")) for k in range(2000)])
    taus = [judged_tau(list(row), rewards) for row in scores]
    assert np.mean(taus) == pytest.approx(1 - noise, abs=4 * np.std(taus) / 2000**0.5 + 1e-9)
    assert scores.std(axis=1) == pytest.approx(np.full(2000, perfect.std()))
    advantages = scores - scores.mean(axis=1, keepdims=True)
    bound = 4 * advantages.std(axis=0).max() / 2000**0.5 + 1e-9
    assert advantages.mean(axis=0) == pytest.approx((1 - noise) * (perfect - perfect.mean()), abs=bound)


@given(st.permutations(range(5)), st.integers(0, 50))
def test_neither_order_nor_ids_make_a_difference(order, seed):
    judge, group = NoisyJudge(0.8, seed), group_of([0, 1, 1, 2, 3])
    plain = scores_of(judge, group)
    moved = [Attempt(f"x{place}", group[place].task, group[place].steps) for place in order]
    found = judge_group(judge, moved)
    assert [found[f"x{i}"].value for i in range(5)] == plain


@pytest.mark.parametrize(("noise", "seed"), [(-0.1, 0), (1.1, 0), (float("nan"), 0), (0.1, -1)])
def test_refuses_what_is_no_share_and_no_seed(noise, seed):
    with pytest.raises(JudgingError, match=r"share from 0 to 1|at least 0"):
        NoisyJudge(noise, seed)
