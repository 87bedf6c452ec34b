"""``art-trainer self-play`` from end to end, on a toy game and a toy model."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from art_trainer.config import GRPOConfig
from art_trainer.errors import CheckpointError, ConfigError
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training.env_samples import game_texts
from art_trainer.training.self_play import play_matches
from art_trainer.training.sft import ImitationConfig, imitate_players
from tests.art_gym.toy_games import FIRST, SECOND, Pennies, Race
from tests.art_trainer.training.test_self_play import race_policy

QUICK = ["--env", "tests.art_gym.toy_games:toy/Race-v0", "--max-steps", "2", "--eval-episodes", "4"]
QUICK += ["--set", "scratch={layers: 1, hidden_size: 16, heads: 2, vocabulary_size: 320}"]
SIZES = "groups_per_step=2 num_generations=3 max_completion_length=2 history_window=1 threads=1"
QUICK += [word for size in SIZES.split() for word in ("--set", size)]


@pytest.fixture
def self_play(invoke: Any) -> Any:
    """Run ``art-trainer self-play`` in an empty folder."""
    return partial(invoke, "self-play")


def steps(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def test_a_run_trains_and_measures_every_seat_beside_the_scripts(self_play: Any) -> None:
    result = self_play(
        *QUICK, "--output-dir", "run", "--set", "warm_start=any", "--set", "warm_start_episodes=6"
    )
    assert result.exit_code == 0
    assert "warm start of first_0 and second_1: imitated any" in result.output
    table = result.output[result.output.index("Against scripted players") :]
    rows = [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if "│" in line]
    for seat in (FIRST, SECOND):
        assert {row[3] for row in rows if seat in row} >= {"any", "best", "before", "after"}
        assert f"{seat} against best, after training:" in table
    assert "after minus before, mean reward" in table
    evaluation = RunFolder(Path("run")).evaluation(f"after-{SECOND}-vs-best")
    assert evaluation is not None
    assert evaluation.reward is not None
    assert evaluation.reward.low <= evaluation.reward.value <= evaluation.reward.high
    assert (evaluation.policy, evaluation.reward.count) == ("after", 4)
    assert len(RunFolder(Path("run")).transcripts(f"after-{SECOND}-vs-best")) == 4
    assert yaml.safe_load(Path("run/run.yaml").read_text())["env"].endswith("toy/Race-v0")


def test_a_run_is_resumed_from_any_step(self_play: Any) -> None:
    self_play(*QUICK, "--output-dir", "run", "--set", "save_steps=1")
    whole = steps("run")
    before = Path(f"run/evaluations/before-{FIRST}-vs-any.json").read_text()
    result = self_play("--resume", "run", "--resume-step", "1", "--set", "save_steps=5")
    assert "Resuming after step 1." in result.output
    again = steps("run")
    assert [line["step"] for line in again] == [1, 2]
    assert again[1]["policy_loss"] == whole[1]["policy_loss"]
    assert json.loads(Path(f"run/evaluations/before-{FIRST}-vs-any.json").read_text()) == json.loads(before)
    newest = Path("run/checkpoints/step-000002")
    (newest / "model/model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        self_play("--resume", "run", "--max-steps", "3")


def test_the_reference_is_the_model_after_its_warm_start(self_play: Any) -> None:
    warm = ("warm_start=any", "warm_start_episodes=20", "warm_start_learning_rate=0.02")
    still = ("beta=0.1", "learning_rate=1e-12", "drop_zero_variance_groups=false")
    arguments = [word for setting in (*warm, *still) for word in ("--set", setting)]
    self_play(*QUICK, "--output-dir", "run", *arguments)
    for line in steps("run"):
        assert line["kl"] == pytest.approx(0, abs=1e-6)


def test_against_a_script_one_seat_learns(self_play: Any) -> None:
    result = self_play(*QUICK, "--output-dir", "run", "--opponent", "best", "--seat", SECOND)
    assert f"{SECOND} against any, after training" in result.output
    assert f"{FIRST} against" not in result.output
    last = steps("run")[-1]
    assert f"{SECOND}/reward" in last
    assert f"{FIRST}/reward" not in last


def test_the_vocabulary_is_taken_from_both_seats() -> None:
    texts = "\n".join(game_texts(Race, seed=0, games=4))
    assert {"+1", "+2", "second_1 wins", "first_0 wins"} <= set(texts.splitlines())
    with pytest.raises(ConfigError, match=r"even_0 has no scripted player to take a vocabulary .* `players`"):
        game_texts(Pennies, seed=0)


def test_imitation_teaches_every_seat_the_moves() -> None:
    policy = race_policy()

    def invalid() -> list[float]:
        matches = [match for seat in (FIRST, SECOND) for match in play_matches(policy, seat, Race, played)]
        return [match.evaluation.invalid_rate for match in matches]

    played = GRPOConfig(eval_episodes=8)
    before = invalid()
    config = ImitationConfig(epochs=6, batch_size=16, learning_rate=5e-3)
    imitate_players(policy, Race, (FIRST, SECOND), "any", episodes=60, seed=0, config=config)
    assert max(invalid()) < 0.2 < min(before)
    with pytest.raises(ConfigError, match="even_0 has no player `any`"):
        imitate_players(policy, Pennies, ["even_0"], "any", episodes=2, seed=0)
