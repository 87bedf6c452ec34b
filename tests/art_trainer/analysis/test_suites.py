import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial

import gymnasium as gym
import pytest
import yaml

from art_gym import Task, TextEnv, tool
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.questions import Question
from art_gym.envs.mail.store.store import MailStoreWriter
from art_trainer.analysis.suites import (
    Suite,
    check_task_list,
    load_suite,
    starts_of,
    suite_names,
    task_list_sha256,
    write_suite,
)
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.evaluate import evaluate, evaluate_starts
from tests.art_trainer.toy_envs import Echo

make_echo = partial(gym.make, "toy/Echo-v0")


class Quiz(TextEnv):
    """Tasks whose words and answers the test chooses."""

    def __init__(self, prompt="Well?", answer="yes", noise=0):
        super().__init__([Task(f"q{k}", prompt, "test", {"answer": answer}) for k in range(3)], split="test")
        self.noise = noise

    def begin(self, task):
        return f"{task.prompt} {int(self.np_random.integers(1000)) + self.noise}"

    @tool(ends=True)
    def say(self, word: str) -> str:
        """Say a word.

        Args:
            word: The word.
        """
        return "Thanks."


QUIZ = (("q0", 1), ("q1", 2))


@pytest.mark.parametrize("name", suite_names())
def test_each_suite_of_the_package_is_what_its_environment_has(name):
    suite = load_suite(name)
    assert suite.name == name
    assert suite.about.endswith(".")
    assert "max_turns" in suite.env_args
    assert len(suite.task_list_sha256) == 64
    assert check_task_list(partial(gym.make, suite.env, **suite.env_args), suite) == suite.task_list_sha256


def test_playing_a_suite_is_evaluating_its_starts():
    split, starts = starts_of(make_echo(), split="validation", episodes=4, seed=1)
    suite = Suite("toy/Echo-v0", starts, split=split, seed=1, samples=3)
    assert suite.episodes == 12
    policy = ScriptedPolicy("random")
    played = evaluate_starts(policy, make_echo, suite.rollout_starts(), split=split, seed=1, samples=3)
    usual = evaluate(policy, make_echo, split="validation", episodes=4, seed=1, samples=3)
    assert played.results == usual.results
    assert (played.split, played.samples, played.tasks) == (usual.split, 3, usual.tasks)


def test_an_environment_without_tasks_has_starts_of_seeds_alone():
    class Bare(gym.Env):
        action_space = observation_space = gym.spaces.Text(100)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            assert options is None
            return f"say {self.np_random.integers(1000)}", {}

    split, starts = starts_of(Bare(), split=None, episodes=3, seed=0)
    assert split is None
    assert [task for task, _ in starts] == [None] * 3
    assert task_list_sha256(Bare, starts) == task_list_sha256(Bare, starts)
    assert task_list_sha256(Bare, starts) != task_list_sha256(Bare, starts[::-1])


def test_the_hash_is_another_for_other_tasks_seeds_orders_and_states():
    others = [(("q0", 1), ("q2", 2)), (("q0", 1), ("q1", 3)), QUIZ[::-1], QUIZ[:1]]
    changed = [{"prompt": "Well??"}, {"answer": "no"}, {"noise": 1}]
    hashes = [task_list_sha256(Quiz, starts) for starts in (QUIZ, *others)]
    hashes += [task_list_sha256(partial(Quiz, **options), QUIZ) for options in changed]
    assert len(set(hashes)) == 8
    assert task_list_sha256(Quiz, QUIZ) == hashes[0]
    suite = Suite("mine/Quiz-v0", QUIZ, name="quiz", task_list_sha256=hashes[0])
    assert check_task_list(Quiz, suite) == hashes[0]
    with pytest.raises(ConfigError, match=r"suite quiz: the tasks of mine/Quiz-v0 have changed"):
        check_task_list(partial(Quiz, answer="no"), suite)
    with pytest.raises(ConfigError, match="no task `q9`"):
        task_list_sha256(Quiz, (("q9", 1),))
    with pytest.raises(ConfigError, match="is not JSON"):
        task_list_sha256(partial(Quiz, answer={1, 2}), QUIZ)


def test_an_environment_that_raises_at_reset_still_has_a_hash():
    class Broken(Echo):
        def begin(self, task):
            raise RuntimeError("never begins")

    starts = (("test-0", 5), ("test-1", 6))
    assert task_list_sha256(Broken, starts) != task_list_sha256(Echo, starts)


def test_a_suite_survives_its_file_and_takes_the_files_name(tmp_path):
    file = tmp_path / "folder" / "mine.yaml"
    suite = Suite(
        "toy/Echo-v0", (("test-0", 5), (None, 6), ("wörd: 1", 2**32 - 1)), name="mine", about="Say: “it”.",
        env_args={"words": 2, "max_turns": 3}, split="test", seed=4, samples=2, temperature=0.7,
        max_completion_length=9, metric="success", task_list_sha256="ab" * 32,
    )  # fmt: skip
    write_suite(file, suite)
    assert load_suite(str(file)) == suite
    lines = file.read_text().splitlines()[-3:]
    assert [tuple(yaml.safe_load(line)[0]) for line in lines] == list(suite.starts)
    assert Suite.from_mapping(suite.to_mapping()) == suite


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env: e\nstarts: [[a, 1]]\nsampels: 2", "unknown key 'sampels'; did you mean `samples`"),
        ("starts: [[a, 1]]", "env is None"),
        ("env: e", "starts is (): set a list"),
        ("env: e\nstarts: [[a]]", "set a list of at least one task's id"),
        ("env: e\nstarts: [[a, -1]]", "set a list of at least one task's id"),
        ("env: e\nstarts: [[3, 1]]", "set a list of at least one task's id"),
        ("env: e\nstarts: [[a, 1], [b, 1], [a, 1]]", "is listed twice"),
        ("env: e\nstarts: [[a, 1]]\nsamples: true", "samples is True"),
        ("env: e\nstarts: [[a, 1]]\nsamples: 0", "samples is 0: set at least 1"),
        ("env: e\nstarts: [[a, 1]]\ntemperature: -1", "temperature is -1"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_malformed_suite_file_is_refused_with_the_reason(tmp_path, text, words):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"mine.*{re.escape(words)}"):
        load_suite(str(file))


@pytest.mark.parametrize(
    ("name", "words"), [("email-v0-tset", "did you mean `email-v0-test`"), ("gone.yaml", "no such file")]
)
def test_an_unknown_suite_is_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        load_suite(name)


ADD = Problem(
    "add", "Add two numbers.", entry_point="add",
    template="def add(a, b):\n    ", public=(Case((1, 2), {}, 3),), hidden=(Case((2, 2), {}, 4),),
    reference="def add(a, b):\n    return a + b\n", mutants=("def add(a, b):\n    return 3\n",),
)  # fmt: skip


def test_the_hash_of_a_coding_problem_covers_what_it_is_graded_with_and_no_more():
    graded = [
        {"hidden": (Case((2, 2), {}, 5),)},
        {"hidden": (*ADD.hidden, Case((0, 0), {}, 0))},
        {"tolerance": 0.1},
        {"equality": "python"},
        {"public": (Case((1, 3), {}, 4),)},
    ]

    def hash_with(**changed):
        problem = dataclasses.replace(ADD, **changed)
        return task_list_sha256(partial(gym.make, "art/Coding-v0", problems=[problem]), (("add", 1),))

    hashes = [hash_with(**changed) for changed in ({}, *graded)]
    assert len(set(hashes)) == 6
    assert hash_with(mutants=(), source="elsewhere") == hashes[0]


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
