import pytest
import torch

from art_trainer.errors import ConfigError
from art_trainer.evaluation import evaluate
from art_trainer.imitation import ImitationConfig
from art_trainer.sampler import SamplingParams
from art_trainer.warm_start import WarmStartConfig, WarmStartRound, warm_start
from tests.art_trainer.guess import GuessEnv, guess_policy


def config(**options: object) -> WarmStartConfig:
    imitation = ImitationConfig(epochs=20, batch_size=24, learning_rate=1e-2)
    settings = {"player": "bisect", "episodes": 24, "imitation": imitation, **options}
    return WarmStartConfig(**settings)  # type: ignore[arg-type]


def test_a_warm_start_teaches_what_the_player_does() -> None:
    policy = guess_policy(hidden=32)
    told: list[WarmStartRound] = []
    rounds = warm_start(
        policy, GuessEnv, config(episodes=48, rounds=1), split=None, seed=0, on_round=told.append
    )
    assert told == rounds
    assert rounds[0].episodes == 48
    assert rounds[0].losses[-1] < rounds[0].losses[0] / 4
    policy.sampling = SamplingParams(temperature=0.0, max_new_tokens=2)
    result = evaluate(policy, GuessEnv, episodes=32, seed=1)
    assert result.success is not None
    assert result.success.value >= 0.6


def test_in_later_rounds_the_policy_plays() -> None:
    rounds = warm_start(
        guess_policy(hidden=16), GuessEnv, config(rounds=2, player="oracle"), split=None, seed=0
    )
    assert [r.episodes for r in rounds] == [24, 24]
    assert rounds[0].mean_reward == 1.0  # the oracle needs one guess
    assert rounds[1].mean_reward < 1.0
    assert rounds[1].replies > 24


def test_the_same_seed_gives_the_same_weights() -> None:
    weights = []
    for _ in range(2):
        policy = guess_policy(hidden=16)
        warm_start(policy, GuessEnv, config(rounds=2, episodes=6, player="oracle"), split=None, seed=5)
        weights.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", ["episodes", "rounds"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the warm start's {name} is 0: set at least 1"):
        config(**{name: 0})
