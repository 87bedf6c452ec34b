import numpy as np
import pytest

from art_trainer.demonstrations import collect_demonstrations
from art_trainer.errors import DivergedError
from art_trainer.evaluation import evaluate
from art_trainer.imitation import ImitationConfig, imitate
from art_trainer.sampler import SamplingParams
from art_trainer.starts import Start
from tests.art_trainer.guess import GuessEnv, guess_policy, seeds


def starts(count: int) -> list[Start]:
    return [Start(seed, group=i, rng_seed=i) for i, seed in enumerate(seeds(count))]


def test_a_policy_learns_to_do_what_it_was_shown() -> None:
    policy = guess_policy(hidden=32)
    policy.sampling = SamplingParams(temperature=0.0, max_new_tokens=2)
    shown = collect_demonstrations(policy, GuessEnv, "bisect", starts(48))
    seen: list[dict[str, float]] = []
    config = ImitationConfig(epochs=80, batch_size=48, learning_rate=1e-2)
    losses = imitate(policy, shown, config, rng=np.random.default_rng(0), on_step=seen.append)
    assert losses[0] > 2.5
    assert losses[-1] < 0.1
    assert [step["step"] for step in seen] == list(range(1, 81))
    assert seen[-1]["learning_rate"] < seen[0]["learning_rate"] / 5
    assert policy.version == 1
    result = evaluate(policy, GuessEnv, episodes=32, seed=1)
    assert result.success is not None
    assert result.success.value >= 0.75


def test_the_same_generator_gives_the_same_weights() -> None:
    losses = []
    for _ in range(2):
        policy = guess_policy(hidden=16)
        shown = collect_demonstrations(policy, GuessEnv, "bisect", starts(12))
        losses.append(
            imitate(policy, shown, ImitationConfig(epochs=2, batch_size=4), rng=np.random.default_rng(3))
        )
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


def test_episodes_without_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the 0 episodes has a sampled token"):
        imitate(guess_policy(hidden=16), [], rng=np.random.default_rng(0))


def test_weights_that_are_no_numbers_end_it() -> None:
    policy = guess_policy(hidden=16)
    shown = collect_demonstrations(policy, GuessEnv, "bisect", starts(4))
    next(policy.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(DivergedError, match="lower learning_rate"):
        imitate(policy, shown, ImitationConfig(epochs=20), rng=np.random.default_rng(0))
