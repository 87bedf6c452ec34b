import dataclasses
import json
import math
import subprocess
from hashlib import sha256

import pytest

from art_trainer.analysis.result_files import (
    EvaluationRecord,
    PolicyRecord,
    differences,
    git_state,
    made_with,
    model_files,
    read_record,
    what_differs,
)
from art_trainer.analysis.suites import Suite
from art_trainer.errors import RecordError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.evaluate import evaluate
from tests.art_trainer.toy_envs import Echo


@pytest.fixture
def record():
    policies = tuple(
        PolicyRecord(name, f"art-trainer eval --policy {name}", evaluate(ScriptedPolicy(name), Echo), files)
        for name, files in (("random", {}), ("scripted", {"model.safetensors": "ab"}))
    )
    starts = tuple((result.task_id, result.seed) for result in policies[0].evaluation.results)
    return EvaluationRecord(Suite("toy/Echo-v0", starts, name="echo"), policies, made_with(), 256, None)


def test_a_record_survives_its_file(record, tmp_path):
    file = tmp_path / "deep" / "result.json"
    record.write(file)
    assert read_record(file) == record
    data = json.loads(file.read_text())
    summary = data["policies"][1]["summary"]
    assert (data["format"], summary["value"], summary["metric"]) == (1, 1.0, "success")


def test_the_commit_and_uncommitted_changes_are_recorded(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=A", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    assert git_state(tmp_path) is None
    git("init")
    assert git_state(tmp_path) is None  # nothing is committed
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first")
    state = git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "new").write_text("not tracked")
    assert git_state(tmp_path) == state
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == {"commit": state["commit"], "dirty": True}


def test_a_models_files_have_the_hashes_of_sha256sum(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "folder.json").mkdir()
    assert model_files(tmp_path) == {
        "config.json": sha256(b"{}").hexdigest(),
        "model.safetensors": sha256(b"weights").hexdigest(),
    }


def test_changed_versions_are_listed():
    before = made_with()
    git = {"commit": "a" * 40, "dirty": False}
    assert {"gymnasium", "numpy", "torch", "transformers"} <= set(before["packages"])
    assert before["machine"] in before["platform"]
    assert what_differs(before, made_with()) == []
    changed = {**before, "git": git, "threads": 7, "packages": {**before["packages"], "numpy": "1.0"}}
    lines = what_differs(changed, {**before, "git": {"commit": "b" * 40, "dirty": True}})
    assert f"numpy: 1.0 then, {before['packages']['numpy']} now" in lines
    assert f"git commit: {'a' * 40} then, {'b' * 40} now" in lines
    assert "uncommitted changes: False then, True now" in lines
    assert any(line.startswith("threads: 7 then") for line in lines)
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a result"),
        ("[]", "is not a result"),
        ('{"format": 1}', "it has no 'policies'"),
        ('{"format": 1, "policies": []}', "it has no policies"),
        ('{"format": 2}', "is of format 2, this version reads up to 1"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, text, words):
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(RecordError, match=words):
        read_record(file)


def test_results_are_compared_bit_for_bit(record):
    then = record.policies[0].evaluation
    results = list(then.results)
    results[0] = dataclasses.replace(results[0], metrics={"ratio": math.nan})
    odd = dataclasses.replace(then, results=tuple(results))
    assert differences(odd, dataclasses.replace(odd)) == []  # NaN equals itself
    results[2] = dataclasses.replace(results[2], reward=results[2].reward + 1e-12, turns=9)
    (found,) = differences(odd, dataclasses.replace(then, results=tuple(results)))
    assert found.startswith("episode 2 (test-2): reward ")
    assert found.endswith("→ 9")
    with pytest.raises(ValueError, match="has 5 episodes of random, but its suite asks for 6"):
        differences(dataclasses.replace(then, results=then.results[:5]), then)
