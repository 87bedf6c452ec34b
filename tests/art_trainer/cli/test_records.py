"""``art-trainer replay`` and ``art-trainer export-data``."""

import json

from art_trainer.analysis.mixed_groups import mixed_starts, play_mixed_groups
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.tracking.episode_store import append_episodes
from art_trainer.tracking.run_dir import RunFolder
from tests.art_trainer.toy_envs import Echo


def test_a_replay_is_equal_or_names_the_step_that_is_not(invoke, trained_run_copy, tmp_path):
    run = trained_run_copy(tmp_path)
    equal = invoke("replay", run, "--step", 2)
    assert equal.exit_code == 0, equal.output
    for text in ("step 1: equal", "From the start of the run:", " 0 differ.", "grad_norm"):
        assert text in equal.output

    metrics = RunFolder(run).metrics_file
    before, first, *rest = metrics.read_text().splitlines()  # the evaluation before, step 1, …
    metrics.write_text("\n".join([before, json.dumps(json.loads(first) | {"loss": 9.0}), *rest, ""]))
    changed = invoke("replay", run, "--step", 2)
    assert (changed.exit_code, "Differs from the logged run from step 1 on." in changed.output) == (1, True)


def test_episodes_are_exported_with_the_environments_instructions_apart(invoke, refused, tmp_path):
    groups = play_mixed_groups([ScriptedPolicy("random")], Echo, mixed_starts(Echo, groups=2), 3)
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
    assert "did you mean `openpipe`" in refused("export-data", "run", "a.jsonl", "--format", "openpip")
    assert not (tmp_path / "a.jsonl").exists()
