"""``art-trainer train --agent``: a program of one's own, from its tasks to a report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from art_trainer.cli.agent_run import ATTEMPTS
from art_trainer.tracking.run_dir import RunFolder

AGENT = """
import sys, openai

client = openai.OpenAI(max_retries=0)
answer = client.responses.create(model="policy", input=sys.argv[1])
open("said.txt", "w").write(answer.output_text)
"""
REWARD = """
def reward(attempt):
    said = (attempt.folder / "said.txt").read_text()
    return {"reward": sum(map(str.isupper, said)) / (1 + len(said)), "success": attempt.exit_code == 0}
"""


def art_trainer(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "art_trainer.cli.main", "train", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1000, check=False
    )


@pytest.mark.e2e
def test_a_program_is_evaluated_trained_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "my_reward.py").write_text(REWARD)
    tasks = [json.dumps({"question": f"Where is number {number}?"}) for number in range(5)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(tasks))
    common = ["--agent", f"{sys.executable} agent.py {{question}}"]
    common += ["--tasks", "tasks.jsonl", "--model", "art-tiny"]
    sizes = ["--max-steps", "1", "--groups-per-step", "1", "--num-generations", "2", "--eval-episodes", "2"]
    given = [*common, "--reward", "my_reward.py", *sizes, "--log", "tensorboard", "--output-dir", "run"]
    planned = art_trainer(tmp_path, *given, "--dry-run")
    assert "agent.py 'Where is number 0?'" in planned.stdout, planned.stderr
    assert not (tmp_path / "run").exists()
    done = art_trainer(tmp_path, *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 tasks to train on; the last 1 are for evaluations" in done.stdout
    run = RunFolder(tmp_path / "run")
    (step,) = run.metrics().records
    assert (step["failed_groups"], step["histories_per_episode"], step["turns"]) == (0, 1, 1)
    after = run.evaluation("after")
    assert after is not None
    assert [result.success for result in after.results] == [True, True]
    assert len(list((run.path / ATTEMPTS).iterdir())) == 2 + 2 + 2
    assert run.report_file.exists()
    assert list((run.path / "tensorboard").iterdir())
    more = art_trainer(tmp_path, "--resume", "run", "--max-steps", "2")
    assert more.returncode == 0, more.stdout + more.stderr
    assert len(run.metrics().records) == 2
    wrong = art_trainer(tmp_path, *common, *sizes)
    assert wrong.returncode == 2
    assert "--reward my_reward.py" in wrong.stderr
    for more, named in (
        (["--env", "art/Email-v0"], "env and tasks are both set"),
        (["--env-args", "difficulty=1"], "env_args is set"),
        (["--set", "history_window=2"], "history_window is set"),
    ):
        assert named in art_trainer(tmp_path, *given[:-1], "other", *more).stderr
    (tmp_path / "agent.py").write_text("raise SystemExit('no key')")
    failed = art_trainer(tmp_path, *given[:-1], "failed")
    assert failed.returncode == 2
    assert "every attempt of the agent failed" in failed.stderr
    assert "exit code 1: no key" in failed.stderr
