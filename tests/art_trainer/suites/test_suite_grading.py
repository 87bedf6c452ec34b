"""A suite's hash covers what its tasks are graded with: hidden tests, and the mails that can be found."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from functools import partial

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.questions import Question
from art_gym.envs.mail.store import MailStoreWriter
from art_trainer.cli import app
from art_trainer.suites import task_list_sha256

ADD = Problem(
    "add", "Add two numbers.", entry_point="add",
    template="def add(a, b):\n    ", public=(Case((1, 2), {}, 3),), hidden=(Case((2, 2), {}, 4),),
    reference="def add(a, b):\n    return a + b\n", mutants=("def add(a, b):\n    return 3\n",),
)  # fmt: skip
STARTS = (("add", 1),)


def hash_of(problem):
    return task_list_sha256(partial(gym.make, "art/Coding-v0", problems=[problem]), STARTS)


@pytest.mark.parametrize(
    "changed",
    [
        {"hidden": (Case((2, 2), {}, 5),)},
        {"hidden": (*ADD.hidden, Case((0, 0), {}, 0))},
        {"tolerance": 0.1},
        {"equality": "python"},
        {"public": (Case((1, 3), {}, 4),)},
    ],
    ids=["a hidden test", "one more", "the tolerance", "the comparison", "an example"],
)
def test_a_coding_problem_that_is_tested_otherwise_has_another_hash(changed):
    assert hash_of(ADD) == hash_of(dataclasses.replace(ADD))
    assert hash_of(dataclasses.replace(ADD, **changed)) != hash_of(ADD)


def test_what_only_proves_that_the_tests_are_good_changes_nothing():
    assert hash_of(dataclasses.replace(ADD, mutants=(), source="elsewhere")) == hash_of(ADD)


def write_problems(file, problem):
    file.write_text(json.dumps(problem.to_json()) + "\n")


def test_verify_says_that_a_hidden_test_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    write_problems(tmp_path / "mine.jsonl", ADD)
    invoke = CliRunner().invoke
    flags = [
        "--env",
        "art/Coding-v0",
        "--env-args",
        "problems=mine.jsonl",
        "--policy",
        "empty",
        "--episodes",
        "1",
    ]
    played = invoke(app, ["eval", *flags, "--json", "a.json"])
    assert played.exit_code == 0, played.output
    again = invoke(app, ["eval", "--verify", "a.json"])
    assert (again.exit_code, "all 1 episodes are the same" in again.output) == (0, True), again.output
    write_problems(tmp_path / "mine.jsonl", dataclasses.replace(ADD, hidden=(Case((2, 2), {}, 5),)))
    changed = invoke(app, ["eval", "--verify", "a.json"])
    assert changed.exit_code == 1
    assert "The tasks are others" in changed.output
    assert "What is asked, answered or graded with has changed" in changed.output


def test_a_mailbox_with_another_mail_has_another_hash(tmp_path):
    asked_on = datetime(2024, 1, 1, tzinfo=UTC)
    asked = Question("q0", "Which?", "known_item", 1, ("0@x",), (), None, "train", asked_on)
    (tmp_path / "questions.jsonl").write_text(json.dumps(asked.to_json()) + "\n")
    sender, sent = Address("Ann", "ann@x.org"), datetime(2023, 1, 1, tzinfo=UTC)
    mails = [
        Message(f"{k}@x", sent + timedelta(days=k), sender, subject="Tea", body=f"Cup {k}.") for k in range(3)
    ]

    def hash_with(name, last):
        with MailStoreWriter(tmp_path / name) as writer:
            for mail in (*mails, last):
                writer.add(mail)
        options = {"mailbox": tmp_path / name, "questions": tmp_path / "questions.jsonl"}
        return task_list_sha256(partial(gym.make, "art/Email-v0", **options), (("q0", 1),))

    decoy = Message("9@x", sent + timedelta(days=9), sender, subject="Tea", body="Cup 9.")
    first = hash_with("a.db", decoy)
    assert hash_with("b.db", decoy) == first
    assert hash_with("c.db", dataclasses.replace(decoy, body="Cup 0, the one you look for.")) != first
