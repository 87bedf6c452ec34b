from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.games import seat_of
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.self_play import SelfPlayTrainer, game_maker, play_matches
from tests.art_gym.toy_games import FIRST, SECOND, Pennies, Race
from tests.art_trainer.guess import SETTINGS, TEMPLATE, guess_policy
from tests.art_trainer.tiny_models import word_tokenizer
from tests.art_trainer.updates import logged_metrics, weights_of

DUEL = "art/2048Duel-v0"
SCRIPT = ScriptedPolicy("any")


def race_policy(seed: int = 0, max_new_tokens: int = 1) -> TransformersPolicy:
    """A two-layer model of random weights that reads and writes whole words of the race."""
    words = ["count", "+1", "+2", "wait", *map(str, range(12))]
    tokenizer = word_tokenizer(words, TEMPLATE, omit_system=True)
    return guess_policy(seed, hidden=48, tokenizer=tokenizer, max_new_tokens=max_new_tokens)


def settings(folder: Path, **changes: Any) -> GRPOConfig:
    own = {"learning_rate": 3e-3, "lr_final_ratio": 0.1, "advantage_estimator": "reward_to_go", "seed": 0}
    evaluation = {"eval_episodes": 10, "eval_temperature": 1.0}
    return GRPOConfig(output_dir=str(folder), **{**SETTINGS, **own, **evaluation, **changes})


@pytest.mark.e2e
def test_self_play_from_random_weights_learns_to_beat_the_script(tmp_path: Path) -> None:
    config = settings(
        tmp_path, max_steps=20, groups_per_step=16, num_generations=8, steps_per_generation=2,
        entropy_coef=0.01, eval_episodes=100,
    )  # fmt: skip
    policy = race_policy()
    trainer = SelfPlayTrainer(policy, Race, config)
    before = [match.evaluation for match in trainer.matches() if match.opponent == "any"]
    trainer.train()
    after = [match.evaluation for match in trainer.matches() if match.opponent == "any"]
    assert len(before) == len(after) == 2  # a seat each
    for start, end in zip(before, after, strict=True):
        assert start.success.high < 0.2
        assert end.success.low > 0.6
        assert end.invalid_rate < 0.2 < start.invalid_rate
    last = logged_metrics(trainer.log.path)[-1]
    assert last[f"{FIRST}/reward"] + last[f"{SECOND}/reward"] > -0.2
    assert policy.version == 20


def test_one_policy_learns_from_its_own_seats_groups(tmp_path: Path) -> None:
    one, other = race_policy(0), race_policy(1)
    before = weights_of(one.model), weights_of(other.model)
    policies = {FIRST: one, SECOND: other}
    trainer = SelfPlayTrainer(policies, Race, settings(tmp_path), learning_seats=[SECOND])
    assert trainer.policy is other
    groups = trainer.collect_episodes()
    assert {seat_of(group) for group in groups} == {SECOND}
    metrics = trainer.update_policy(groups)
    assert torch.equal(weights_of(one.model), before[0])
    assert not torch.equal(weights_of(other.model), before[1])
    assert (one.version, other.version) == (0, 1)
    assert f"{SECOND}/turns" in metrics
    assert f"{FIRST}/turns" not in metrics
    with pytest.raises(ConfigError, match="first_0 and second_1 have two policies to train"):
        SelfPlayTrainer(policies, Race, settings(tmp_path))


def test_stopping_and_resuming_gives_the_numbers_of_never_stopping(tmp_path: Path) -> None:
    def make(folder: str, seed: int = 0) -> SelfPlayTrainer:
        config = settings(tmp_path / folder, max_steps=4, save_steps=2, save_total_limit=None)
        return SelfPlayTrainer(race_policy(seed), Race, config)

    straight = make("straight")
    straight.train()
    resumed = make("resumed", seed=5)
    resumed.load_checkpoint(list_checkpoints(straight.log.checkpoints)[0])
    assert resumed.step == 2
    resumed.train()
    assert torch.equal(*(weights_of(trainer.policy.model) for trainer in (straight, resumed)))
    # A run that never was does not know the first steps' lines.
    assert logged_metrics(straight.log.path)[2:] == logged_metrics(resumed.log.path)


def test_matches_of_scripts_give_intervals(tmp_path: Path) -> None:
    config = settings(tmp_path, eval_episodes=60)
    weak, strong = play_matches(ScriptedPolicy("best"), FIRST, Race, config)
    assert (weak.seat, weak.opponent, strong.opponent) == (FIRST, "any", "best")
    assert weak.evaluation.env_id == "toy_race_v0:first_0"
    # The first wins against the best whenever the start allows it, and nearly always against chance.
    won = [10 - int(episode.observation.split()[-1]) for episode in strong.episodes]
    assert [episode.success for episode in strong.episodes] == [left % 3 != 0 for left in won]
    assert weak.evaluation.success.low > strong.evaluation.success.value - 0.05
    assert weak.evaluation.reward.count == len(weak.episodes) == 60
    assert [episode.seed for episode in weak.episodes] == [episode.seed for episode in strong.episodes]
    assert play_matches(SCRIPT, "even_0", Pennies, config) == []


@pytest.mark.parametrize(
    ("policies", "options", "message"),
    [
        ({"first": SCRIPT, SECOND: SCRIPT}, {}, "policies are for `first`.*did you mean `first_0`"),
        ({FIRST: SCRIPT}, {}, "the seats are first_0, second_1"),
        (SCRIPT, {}, "no seat learns"),
        (SCRIPT, {"learning_seats": [FIRST]}, "first_0 cannot learn: any has no weights"),
        (SCRIPT, {"learning_seats": ["third"]}, "learning_seats are for `third`"),
    ],
)
def test_wrong_seats_and_policies_are_named(
    tmp_path: Path, policies: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SelfPlayTrainer(policies, Race, settings(tmp_path), **options)


@pytest.mark.parametrize(
    "changes",
    [{"dynamic_sampling": True}, {"env_threads": 2}, {"load_best_model_at_end": True, "eval_steps": 1}],
)
def test_settings_that_games_do_not_use_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} is .*: self-play has none"):
        SelfPlayTrainer(race_policy(), Race, settings(tmp_path, **changes))


def test_games_are_found_by_their_id() -> None:
    assert game_maker(DUEL, board_size=3, target=64)().possible_agents == ["slider_0", "placer_1"]
    assert isinstance(game_maker("tests.art_gym.toy_games:toy/Race-v0", goal=7)(), Race)
    for game, message in (
        ("nowhere:toy/Race-v0", "No module named 'nowhere'"),
        ("art/2048Duel-v1", "did you mean `art/2048Duel-v0`"),
        ("nope", r"known: (?!.*atari)"),
    ):
        with pytest.raises(ConfigError, match=message):
            game_maker(game)
    with pytest.raises(ConfigError, match=r"cannot be made with board_size=2: board size must be from 3"):
        game_maker(DUEL, board_size=2)
