from dataclasses import replace
from typing import Any

import pytest

from art_trainer.config import GRPOConfig
from art_trainer.training.group_filter import is_trained_on, needs_replacement, resample_zero_variance_groups
from art_trainer.types import Ending, Episode, Group, Span, TokenHistory
from tests.art_trainer.made_episodes import made_episode

HISTORY = TokenHistory((Span((1, 2)), Span((3, 4), 0, (-1.0, -2.0))))
MASKED = {"mask_truncated_completions": True}


def episode(reward: float, **changes: Any) -> Episode:
    return replace(made_episode(0, reward, [HISTORY]), **changes)


def group(*rewards: float, **changes: Any) -> Group:
    return Group(tuple(episode(reward, **changes) for reward in rewards))


def config(**settings: Any) -> GRPOConfig:
    return GRPOConfig(**{"dynamic_sampling": True, "groups_per_step": 4, **settings})


FLAT, GOOD, BETTER = group(1.0, 1.0), group(0.0, 1.0), group(0.0, 3.0)
BROKEN = Group((episode(0.0), episode(1.0, ending=Ending.ENV_ERROR, error="gone")))
CUT, SILENT = group(0.0, 1.0, ending=Ending.CONTEXT_FULL), group(0.0, 1.0, histories=())


def test_groups_without_signal_need_replacement() -> None:
    groups = [GOOD, FLAT, BROKEN, BETTER, CUT, SILENT]
    assert needs_replacement(groups, config()) == [1, 2, 5]
    assert needs_replacement(groups, config(**MASKED)) == [1, 2, 4, 5]
    assert needs_replacement([], config()) == []


def test_a_reply_that_ran_into_its_limit_is_masked_too() -> None:
    first, other = GOOD.episodes
    cut = replace(first, turns=tuple(replace(turn, cut=True) for turn in first.turns))
    assert is_trained_on(cut, config())
    assert is_trained_on(replace(first, ending=Ending.TRUNCATED), config(**MASKED))
    assert [is_trained_on(one, config(**MASKED)) for one in (cut, other)] == [False, True]


@pytest.mark.parametrize(
    ("settings", "fresh", "asked", "kept"),
    [
        ({}, [BETTER, GOOD], [2], [BETTER, GOOD, GOOD]),
        ({"max_resampled_groups": 1}, [FLAT] * 9, [1], [FLAT, GOOD, BROKEN]),
        ({"max_resampled_groups": 3}, [FLAT] * 9, [2, 1], [FLAT, GOOD, FLAT]),
        ({"max_resampled_groups": None}, [FLAT] * 9, [2, 2], [FLAT, GOOD, FLAT]),
        ({"dynamic_sampling": False}, [], [], [FLAT, GOOD, BROKEN]),
    ],
)
def test_groups_without_signal_are_replaced_in_their_places_up_to_the_bound(
    settings: dict[str, Any], fresh: list[Group], asked: list[int], kept: list[Group]
) -> None:
    waiting, counts = iter(fresh), list[int]()

    def play(count: int) -> list[Group]:
        counts.append(count)
        return [next(waiting) for _ in range(count)]

    found, replaced = resample_zero_variance_groups([FLAT, GOOD, BROKEN], play, config(**settings))
    assert counts == asked
    assert found == kept
    assert len(replaced) == sum(asked)
    assert replaced[:2] == [FLAT, BROKEN][: sum(asked)]
