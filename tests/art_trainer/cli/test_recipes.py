"""Every recipe loads, names what it needs, and trains."""

import pytest
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.cli.run_config import gather_settings, read_recipe, recipe_names, recipes_for

SELF_PLAY = ("2048-duel",)
TINY = {
    "max_steps": 1, "groups_per_step": 2, "num_generations": 2, "steps_per_generation": 1, "eval_episodes": 1,
    "warm_start_episodes": 2, "warm_start_epochs": 1, "baselines": "[]", "threads": 1,
    "warm_start_keep": "all", "scratch": "{layers: 1, hidden_size: 16, heads: 2}",
}  # fmt: skip
FAST = {
    "2048": {"env_args": "{max_turns: 4}", "train_env_args": "{max_turns: 4}"},
    "frozen-lake": {"env_args": "{max_turns: 4}", "train_env_args": "{max_turns: 4}"},
    "2048-duel": {"env_args": "{board_size: 3, target: 8}"},
    "judge-smollm2": {"max_completion_length": 16},
}
SLOW = ("2048", "2048-duel", "coding", "coding-smollm2", "email-smollm2", "judge-smollm2")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.e2e if name in SLOW else ()) for name in recipe_names()]
)
def test_a_recipe_trains_a_tiny_step(name, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if read_recipe(name)["model"] == "smollm2":
        request.getfixturevalue("smollm2")
    command = ["self-play" if name in SELF_PLAY else "train", "--recipe", name]
    for setting, value in (TINY | FAST.get(name, {})).items():
        command += ["--set", f"{setting}={value}"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"recipe {name}" in result.output


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_sets_what_the_run_needs(name):
    settings = gather_settings({"output_dir": "x"}, overrides={}, recipe=name)
    assert settings.sources["env"] == f"recipe {name}"
    assert set(read_recipe(name)) >= {"env", "model", "learning_rate", "max_completion_length"}
    assert name in recipes_for(settings.run.env)


def test_the_default_recipe_gives_way_to_what_is_named():
    def gather(**flags):
        return gather_settings({"output_dir": "x", **flags}, overrides={})

    assert gather().sources["max_steps"] == "recipe email"
    other = gather(model="Qwen/Qwen3-0.6B")
    assert (other.run.env, other.run.env_args, other.config.learning_rate) == ("art/Email-v0", {}, 1e-6)
    assert gather(env="toy/Echo-v0").config.learning_rate == 1e-3, "the default of a scratch model"
    adapter = gather(model="Qwen/Qwen3-0.6B", lora=16)
    assert (adapter.config.learning_rate, adapter.sources["learning_rate"]) == (2e-5, "default of lora")
    assert gather(model="Qwen/Qwen3-0.6B", lora=16, learning_rate=1e-4).config.learning_rate == 1e-4


def test_train_mentions_a_recipe_that_is_not_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "--env", "toy/FrozenLake-v0", "--set", "warm_start=nobody"]
    assert "--recipe frozen-lake" in CliRunner().invoke(app, command).output
