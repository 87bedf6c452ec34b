from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from art_trainer.config import GRPOConfig
from art_trainer.episodes import Ending, Episode, Group, Span, TokenHistory
from art_trainer.rollout import rollout_groups
from art_trainer.selection import is_trained_on, needs_replacement, replace_without_signal
from tests.art_trainer.guess import GuessEnv, guess_policy, seeds
from tests.art_trainer.made_episodes import made_episode

HISTORY = TokenHistory((Span((1, 2)), Span((3, 4), 0, (-1.0, -2.0))))


def episode(reward: float, **changes: Any) -> Episode:
    return replace(made_episode(0, reward, [HISTORY]), **changes)


def group(*rewards: float) -> Group:
    return Group(tuple(map(episode, rewards)))


def config(**settings: Any) -> GRPOConfig:
    return GRPOConfig(**{"dynamic_sampling": True, "groups_per_step": 4, **settings})


class Player:
    """Plays groups from a list, and remembers how many were asked for each time."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.waiting = list(groups)
        self.asked: list[int] = []

    def __call__(self, count: int) -> list[Group]:
        self.asked.append(count)
        return [self.waiting.pop(0) for _ in range(count)]


FLAT, GOOD, BETTER = group(1.0, 1.0), group(0.0, 1.0), group(0.0, 3.0)
BROKEN = Group((episode(0.0), episode(1.0, ending=Ending.ENV_ERROR, error="gone")))


def test_groups_of_equal_rewards_and_failed_ones_need_replacement() -> None:
    assert needs_replacement([GOOD, FLAT, BROKEN, BETTER], config()) == [1, 2]
    assert needs_replacement([], config()) == []


@pytest.mark.parametrize(
    "estimator", ["leave_one_out", "reinforce_plus_plus_baseline", "reward_to_go", "gigpo"]
)
def test_so_they_do_with_every_estimator_that_compares_within_groups(estimator: Any) -> None:
    found = needs_replacement([GOOD, FLAT, BROKEN, BETTER], config(advantage_estimator=estimator))
    assert found == [1, 2]


def test_a_group_whose_attempts_are_all_masked_or_silent_teaches_nothing() -> None:
    cut = Group(tuple(replace(e, ending=Ending.TRUNCATED) for e in GOOD.episodes))
    silent = Group(tuple(replace(e, histories=()) for e in GOOD.episodes))
    assert needs_replacement([cut, silent], config()) == [1]
    assert needs_replacement([cut, silent], config(mask_truncated_completions=True)) == [0, 1]


def test_a_reply_that_ran_into_its_limit_is_masked_too() -> None:
    first, *others = GOOD.episodes
    turns = tuple(replace(turn, cut=True) for turn in first.turns)
    assert is_trained_on(replace(first, turns=turns), config())
    assert not is_trained_on(replace(first, turns=turns), config(mask_truncated_completions=True))
    assert all(is_trained_on(e, config(mask_truncated_completions=True)) for e in others)


def test_groups_that_teach_nothing_are_replaced_in_their_places() -> None:
    play = Player([BETTER, GOOD])
    kept, replaced = replace_without_signal([FLAT, GOOD, BROKEN], play, config())
    assert kept == [BETTER, GOOD, GOOD]
    assert replaced == [FLAT, BROKEN]
    assert play.asked == [2]


def test_it_goes_on_until_every_group_teaches() -> None:
    play = Player([FLAT, GOOD, BETTER])
    kept, replaced = replace_without_signal([FLAT, FLAT], play, config())
    assert kept == [BETTER, GOOD]
    assert replaced == [FLAT, FLAT, FLAT]
    assert play.asked == [2, 1]


@pytest.mark.parametrize(("budget", "asked"), [(1, [1]), (3, [2, 1]), (None, [2, 2])])
def test_it_stops_at_the_bound(budget: int | None, asked: list[int]) -> None:
    play = Player([FLAT] * 9)
    kept, replaced = replace_without_signal([FLAT, FLAT, GOOD], play, config(max_resampled_groups=budget))
    assert play.asked == asked
    assert kept == [FLAT, FLAT, GOOD]
    assert len(replaced) == sum(asked)


def test_without_dynamic_sampling_nothing_is_played() -> None:
    play = Player([])
    kept, replaced = replace_without_signal([FLAT, GOOD], play, config(dynamic_sampling=False))
    assert (kept, replaced, play.asked) == ([FLAT, GOOD], [], [])


def test_a_played_step_is_filled_with_groups_that_teach() -> None:
    policy, settings = guess_policy(hidden=32, max_new_tokens=1), config(groups_per_step=8)
    rounds = iter(range(1, 99))

    def play(count: int) -> list[Group]:
        number = next(rounds)
        return rollout_groups(policy, GuessEnv, seeds(count, number), 4, rng_seed=number)

    first = rollout_groups(policy, GuessEnv, seeds(8), 4)
    kept, replaced = replace_without_signal(first, play, settings)
    # A policy of random weights seldom guesses right: some groups of four hold nothing but failures.
    assert 0 < len(replaced) <= 8
    assert len(kept) == 8
    assert len(needs_replacement(kept, settings)) < len(needs_replacement(first, settings))
    assert not needs_replacement(kept, settings) or len(replaced) == 8
