import dataclasses
import json
import math
import subprocess
from hashlib import sha256

import pytest

from art_trainer.errors import RecordError
from art_trainer.evaluation import evaluate
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.statistics import Interval
from art_trainer.suites import EvaluationRecord, PolicyRecord, Suite, differences, read_record
from art_trainer.suites.provenance import git_state, made_with, model_files, what_differs
from art_trainer.suites.record import interval_json
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
    told = json.loads(file.read_text())
    assert told["format"] == 1
    assert told["policies"][1]["summary"]["value"] == 1.0
    assert told["policies"][1]["summary"]["metric"] == "success"


def test_what_made_it_is_all_there():
    told = made_with()
    assert {"gymnasium", "numpy", "torch", "transformers"} <= set(told["packages"])
    assert told["python"].count(".") == 2
    assert told["machine"] in told["platform"]
    json.dumps(told)


def test_the_commit_and_its_changes_are_told(tmp_path):
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


def test_a_models_files_are_told_as_sha256sum_would(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "folder.json").mkdir()
    assert model_files(tmp_path) == {
        "config.json": sha256(b"{}").hexdigest(),
        "model.safetensors": sha256(b"weights").hexdigest(),
    }


def test_what_has_changed_is_said_plainly():
    before = made_with()
    git = {"commit": "a" * 40, "dirty": False}
    assert what_differs(before, made_with()) == []
    changed = {**before, "git": git, "threads": 7, "packages": {**before["packages"], "numpy": "1.0"}}
    lines = what_differs(changed, {**before, "git": {"commit": "b" * 40, "dirty": True}})
    assert f"numpy: 1.0 then, {before['packages']['numpy']} now" in lines
    assert f"git commit: {'a' * 40} then, {'b' * 40} now" in lines
    assert "uncommitted changes: no then, yes now" in lines
    assert any(line.startswith("threads: 7 then") for line in lines)
    assert len(lines) == 4
    gone = {**before, "packages": {}}
    assert f"numpy: {before['packages']['numpy']} then, none now" in what_differs(before, gone)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a result"),
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


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"gone\.json cannot be read: No such file"):
        read_record(tmp_path / "gone.json")


def test_an_interval_without_ends_is_json():
    assert interval_json(Interval(1.0, math.nan, math.nan, 1)) == {"value": 1.0, "low": None, "high": None}
    assert interval_json(None)["value"] is None


def test_equal_evaluations_do_not_differ(record):
    then = read_back = record.policies[0].evaluation
    assert differences(then, read_back) == []
    again = evaluate(ScriptedPolicy("random"), Echo)
    assert differences(then, again) == []


def test_what_differs_is_told_by_episode_and_field(record):
    then = record.policies[0].evaluation
    results = list(then.results)
    results[2] = dataclasses.replace(results[2], reward=results[2].reward + 1e-12, turns=9)
    (found,) = differences(then, dataclasses.replace(then, results=tuple(results)))
    assert (found.place, found.task_id, set(found.fields)) == (2, "test-2", {"reward", "turns"})
    assert found.words.startswith("episode 2 (test-2): reward ")
    assert "→ 9" in found.words


def test_what_is_no_number_equals_itself(record):
    then = record.policies[0].evaluation
    odd = dataclasses.replace(then.results[0], metrics={"ratio": math.nan})
    evaluation = dataclasses.replace(then, results=(odd,))
    assert differences(evaluation, dataclasses.replace(evaluation)) == []


def test_a_file_that_is_not_whole_is_refused(record):
    then = record.policies[0].evaluation
    with pytest.raises(ValueError, match="has 5 episodes of random, but its suite asks for 6"):
        differences(dataclasses.replace(then, results=then.results[:5]), then)
