"""A suite's hash covers what its tasks are graded with: hidden tests, and the mails that can be found."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from functools import partial

import gymnasium as gym

from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.questions import Question
from art_gym.envs.mail.store.store import MailStoreWriter
from art_trainer.analysis.suites import task_list_sha256

ADD = Problem(
    "add", "Add two numbers.", entry_point="add",
    template="def add(a, b):\n    ", public=(Case((1, 2), {}, 3),), hidden=(Case((2, 2), {}, 4),),
    reference="def add(a, b):\n    return a + b\n", mutants=("def add(a, b):\n    return 3\n",),
)  # fmt: skip
STARTS = (("add", 1),)


def hash_of(problem):
    return task_list_sha256(partial(gym.make, "art/Coding-v0", problems=[problem]), STARTS)


def test_the_hash_of_a_coding_problem_covers_what_it_is_graded_with_and_no_more():
    graded = [
        {"hidden": (Case((2, 2), {}, 5),)},
        {"hidden": (*ADD.hidden, Case((0, 0), {}, 0))},
        {"tolerance": 0.1},
        {"equality": "python"},
        {"public": (Case((1, 3), {}, 4),)},
    ]
    hashes = [hash_of(dataclasses.replace(ADD, **changed)) for changed in ({}, *graded)]
    assert len(set(hashes)) == 6
    assert hash_of(dataclasses.replace(ADD, mutants=(), source="elsewhere")) == hashes[0]


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
