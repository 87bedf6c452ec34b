"""What is read off an environment before a model is made for it, and what such a model learns first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from art_gym.testing import check_text_env
from art_trainer.cli.run_config import gather_settings
from art_trainer.rollout.envs import MakeEnv, env_maker
from art_trainer.rollout.evaluate import evaluate
from art_trainer.training.env_samples import episode_texts, repeats_state, sample_episodes
from art_trainer.training.run_settings import Settings
from art_trainer.training.run_setup import env_texts, fit_to_env, prepare_policy, warm_up
from tests.art_trainer.guess import GuessEnv

ENVIRONMENTS = Path(__file__).parents[2] / "environments"
NAMES = sorted(file.stem for file in ENVIRONMENTS.glob("*.py"))
SMALL = {"layers": 2, "hidden_size": 32, "heads": 4}
BOARDS = {"hangman", "maze", "sort_cards", "tic_tac_toe"}


def make(name: str) -> MakeEnv:
    return env_maker(str(ENVIRONMENTS / f"{name}.py"), {})


def test_the_texts_of_episodes_are_what_all_players_saw_and_said() -> None:
    episodes = sample_episodes(GuessEnv, ["bisect", "oracle"], split=None, seed=0, episodes=3)
    texts = [text for episode in episodes for text in episode_texts(episode)]
    assert texts.count("GUESS") == 6
    assert "RIGHT" in texts
    assert any(text.isdecimal() for text in texts)


@pytest.mark.parametrize("name", NAMES)
def test_observations_that_show_the_whole_state_need_no_history(name: str) -> None:
    for seed in (0, 1):
        assert repeats_state(sample_episodes(make(name), ["random"], split=None, seed=seed)) == (
            name in BOARDS
        )


def settings(name: str, **flags: object) -> Settings:
    env = str(ENVIRONMENTS / f"{name}.py")
    return gather_settings({"env": env, "model": "scratch", "scratch": SMALL, **flags}, overrides={})


def test_replies_history_and_groups_are_chosen_from_the_environment(tmp_path: Path) -> None:
    for name, window, groups in (("maze", 1, 16), ("form", None, 16), ("guess", None, 32)):
        chosen = fit_to_env(settings(name, output_dir=str(tmp_path / name)))
        assert (chosen.run.history_window, chosen.config.groups_per_step) == (window, groups)
        assert chosen.config.max_completion_length < 24
    own = {"history_window": 3, "max_completion_length": 50, "groups_per_step": 28}
    kept = fit_to_env(settings("maze", output_dir=str(tmp_path / "own"), **own))
    assert kept.run.history_window == 3
    assert (kept.config.max_completion_length, kept.config.groups_per_step) == (50, 28)


@pytest.mark.e2e
def test_a_model_from_scratch_first_learns_to_make_valid_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = fit_to_env(settings("guess", output_dir=str(tmp_path)))
    policy = prepare_policy(chosen, lambda: env_texts(chosen, make("guess")), checkpoint=None)

    def invalid() -> float:
        return evaluate(policy, make("guess"), episodes=32, seed=1).invalid_rate

    assert invalid() > 0.95
    with caplog.at_level("INFO"):
        warm_up(policy, chosen, make("guess"))
    assert invalid() < 0.1
    assert re.search(
        r"\d+% of the replies are valid calls, after the best \d+ of \d+ episodes of random", caplog.text
    )


@pytest.mark.parametrize("name", NAMES)
def test_small_environments_keep_the_contract(name: str) -> None:
    check_text_env(make(name)())
