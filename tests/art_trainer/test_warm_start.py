import pytest
import torch

from art_trainer.errors import ConfigError
from art_trainer.evaluation import evaluate
from art_trainer.imitation import ImitationConfig
from art_trainer.sampler import SamplingParams
from art_trainer.warm_start import WarmStartConfig, warm_start
from tests.art_trainer.guess import GuessEnv, guess_policy


def config(**options: object) -> WarmStartConfig:
    imitation = ImitationConfig(epochs=20, batch_size=24, learning_rate=1e-2)
    settings = {"player": "bisect", "episodes": 24, "imitation": imitation, **options}
    return WarmStartConfig(**settings)  # type: ignore[arg-type]


def test_a_warm_start_teaches_what_the_player_does() -> None:
    policy = guess_policy(hidden=32)
    done = warm_start(policy, GuessEnv, config(episodes=48), split=None, seed=0)
    assert done.episodes == 48
    assert 48 < done.replies < 48 * 5
    assert 0.5 < done.mean_reward < 1
    assert done.losses[-1] < done.losses[0] / 4
    policy.sampling = SamplingParams(temperature=0.0, max_new_tokens=2)
    result = evaluate(policy, GuessEnv, episodes=32, seed=1)
    assert result.success is not None
    assert result.success.value >= 0.6


def test_the_same_seed_gives_the_same_weights() -> None:
    weights = []
    for _ in range(2):
        policy = guess_policy(hidden=16)
        warm_start(policy, GuessEnv, config(episodes=6, player="oracle", noise=0.5), split=None, seed=5)
        weights.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"episodes": 0}, "episodes is 0: set at least 1"), ({"noise": 2.0}, r"noise is 2\.0: set a share")],
)
def test_settings_out_of_range_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**options)
