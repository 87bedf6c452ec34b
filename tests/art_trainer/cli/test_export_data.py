"""``art-trainer export-data``."""

import json

from art_trainer.analysis.mixed_groups import mixed_starts, play_mixed_groups
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.games import play_games
from art_trainer.tracking.episode_store import append_episodes
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training.self_play import game_maker
from art_trainer.types import EpisodeSpec, Group
from tests.art_trainer.toy_envs import Echo


def test_episodes_are_exported_with_the_environments_instructions_apart(invoke, tmp_path):
    groups = play_mixed_groups([ScriptedPolicy("random")], Echo, mixed_starts(Echo, groups=2, size=3))
    RunFolder(tmp_path / "run").write_settings({"env": "toy/Echo-v0"})
    for step in (1, 2):
        append_episodes(tmp_path / "run", step, [one.group for one in groups])
    assert "sft.jsonl: 18 rows" in invoke("export-data", "run", "sft.jsonl", "--duplicates").output
    assert (tmp_path / "sft.jsonl").stat().st_mode & 0o777 == 0o600
    row = json.loads((tmp_path / "sft.jsonl").read_text().splitlines()[0])
    assert row["prompt"][0]["role"] == "system"
    assert "Say the word you are asked for." in row["prompt"][0]["content"]
    assert row["prompt"][1]["content"].startswith("Say ")
    assert "9 rows" in invoke("export-data", "run", "last.jsonl", "--from-step", 2, "--duplicates").output
    invoke("export-data", "run", "none.jsonl", "--min-reward", 99)
    assert (tmp_path / "none.jsonl").read_text() == ""


def test_each_seat_of_a_game_has_its_tools_and_instructions(invoke, tmp_path):
    env = "art/2048Duel-v0"
    made = game_maker(env, target=64)
    players = dict.fromkeys(made().possible_agents, ScriptedPolicy("random"))
    (game,) = play_games(players, made, [EpisodeSpec(0)])
    RunFolder(tmp_path / "run").write_settings({"env": env, "env_args": {"target": 64}})
    append_episodes(tmp_path / "run", 1, [Group((episode,)) for episode in game.values()])
    invoke("export-data", "run", "sft.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    found = [(row["prompt"][0]["role"], json.loads(row["tools"])[0]["function"]["name"]) for row in rows]
    assert set(found) == {("system", "move"), ("system", "place")}
