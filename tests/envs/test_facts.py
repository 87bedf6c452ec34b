"""The facts that each environment gives to judges, and what the default judge makes of them."""

from __future__ import annotations

import copy
import math
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from art_gym.env import TextEnv
from art_gym.envs.coding import sharing
from art_gym.envs.coding.env import CodingEnv
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import SandboxUnavailableError
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.mail.env import EmailEnv
from art_gym.envs.mail.facts import episode_facts
from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.questions import Question
from art_gym.envs.mail.store.store import MailStoreWriter
from art_gym.wrappers.judging.base import Score
from art_gym.wrappers.judging.recording import AttemptRecorder
from art_gym.wrappers.judging.rubric_judge import RubricJudge, accuracy


def judged(env: TextEnv, task: str, *replies: str) -> tuple[Score, dict[str, Any]]:
    """Play an episode to its end; the default judge's score of it, and the facts."""
    recorder = AttemptRecorder()
    recorder.begin(*env.reset(seed=0, options={"task": task}))
    for reply in replies:
        stepped = env.step(reply)
        recorder.add(reply, *stepped)
    assert recorder.ended
    attempt = recorder.attempt("a")
    assert attempt.facts == stepped[4]["facts"]
    return RubricJudge().score(attempt), dict(attempt.facts)


# --- e-mail ---

BOB = Address("Bob Fell", "bob@fir.example")
MAILS = [
    ("a1@fir.example", "Falcon budget", "The Falcon budget is 1,250 EUR."),
    ("a2@fir.example", "Falcon budget, corrected", "The Falcon budget is 1,400 EUR."),
]
SEARCH, READ = 'search("falcon corrected")', 'read("m1")'


def question(kind: str, gold: list[str], answers: list[str], answer_type: str | None = None) -> Question:
    return Question(
        id=f"{kind}-{answer_type}",
        text="What about the Falcon budget?",
        kind=kind,  # type: ignore[arg-type]
        difficulty=1,
        gold_ids=tuple(gold),
        answers=tuple(answers),
        answer_type=answer_type,  # type: ignore[arg-type]
        split="train",
        asked_on=datetime(2024, 3, 20, tzinfo=UTC),
    )


@pytest.fixture(scope="module")
def mailbox(tmp_path_factory: pytest.TempPathFactory) -> EmailEnv:
    path: Path = tmp_path_factory.mktemp("facts") / "box.db"
    sent = datetime(2024, 3, 1, tzinfo=UTC)
    with MailStoreWriter(path) as writer:
        for message_id, subject, body in MAILS:
            writer.add(Message(message_id, sent, BOB, (BOB,), subject=subject, body=body, mailboxes=("bob",)))
    questions = [
        question("known_item", ["a2@fir.example"], []),
        question("fact", ["a2@fir.example"], ["1,400 EUR", "EUR 1400"], "amount"),
        question("fact", ["a2@fir.example"], ["a corrected budget"], "text"),
        question("unanswerable", [], []),
    ]
    return EmailEnv(mailbox=path, questions=questions, max_turns=4)


def test_a_mail_is_named_by_its_message_id(mailbox: EmailEnv) -> None:
    score, facts = judged(mailbox, "known_item-None", SEARCH, 'select("m1")')
    assert facts == {
        "task_type": "email_search",
        "match": "exact",
        "optimal_turns": 2,
        "required_actions": ["search", "select"],
        "result": {"mail": "a2@fir.example"},
        "expected": {"mail": "a2@fir.example"},
    }
    assert score.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("replies", "result"),
    [
        ([SEARCH, 'select("m2")'], {"mail": "a1@fir.example"}),
        ([SEARCH, 'answer("not in the mailbox")'], None),
        ([SEARCH, 'answer("the second")'], {"answer": "the second"}),
        ([SEARCH] * 4, None),
    ],
)
def test_anything_but_the_right_mail_is_wrong(mailbox: EmailEnv, replies: list[str], result: Any) -> None:
    score, facts = judged(mailbox, "known_item-None", *replies)
    assert facts.get("result") == result
    assert score.parts["accuracy"] == 0.0


@pytest.mark.parametrize(
    ("task", "answer", "result", "value"),
    [
        ("fact-amount", "It is €1400", "1,400 EUR", 1.0),
        ("fact-amount", "1,401 EUR", "1,401 EUR", 0.0),
        ("fact-amount", "not in the mailbox", None, 0.0),
        ("fact-text", "A corrected budget!", "a corrected budget", 1.0),
        ("fact-text", "a correct budget", "a correct budget", pytest.approx(32 / 34)),
        ("unanswerable-None", "Nothing in the mailbox says so.", "not in the mailbox", 1.0),
        ("unanswerable-None", "1,400 EUR", "1,400 EUR", 0.0),
    ],
)
def test_answers_are_told_as_graded(
    mailbox: EmailEnv, task: str, answer: str, result: str | None, value: float
) -> None:
    score, facts = judged(mailbox, task, SEARCH, READ, f'answer("{answer}")')
    assert facts["task_type"] == "question_answering"
    assert facts.get("result") == (None if result is None else {"answer": result})
    assert score.parts["accuracy"] == value


def test_a_fact_wants_its_mail_read(mailbox: EmailEnv) -> None:
    guessed, _ = judged(mailbox, "fact-amount", 'answer("1400 EUR")')
    assert guessed.parts["completeness"] == pytest.approx(1 / 3)


def test_what_is_expected_depends_on_what_is_known() -> None:
    for chosen, expected in (("b", "b"), ("c", "c"), ("d", "b")):  # several mails are right
        facts = episode_facts({"kind": "known_item", "answer_type": None}, {"mail": chosen}, ["c", "b"])
        assert (facts["expected"], facts["result"]) == ({"mail": expected}, {"mail": chosen})
    asked: dict[str, Any] = {"kind": "fact", "answers": [], "answer_type": None}
    assert "expected" not in episode_facts(asked, {"answer": ""}, [])
    assert "expected" not in episode_facts({"kind": "known_item"}, None, [])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_vector_environment_joins_facts_that_differ(mailbox: EmailEnv, order: tuple[int, ...]) -> None:
    ends = ['select("m1")', 'answer("not in the mailbox")', 'answer("Bob")']
    with closing(gym.vector.SyncVectorEnv([lambda: copy.deepcopy(mailbox)] * 3)) as envs:
        envs.reset(seed=1, options={"task": "known_item-None"})
        envs.step(np.array([SEARCH] * 3, dtype=object))
        facts = envs.step(np.array([ends[index] for index in order], dtype=object))[4]["facts"]
    at = {index: place for place, index in enumerate(order)}
    assert list(facts["_result"][[at[0], at[1], at[2]]]) == [True, False, True]
    assert facts["result"]["mail"][at[0]] == "a2@fir.example"
    assert facts["result"]["answer"][at[2]] == "Bob"


# --- 2048 ---


def test_2048_tells_how_far_the_game_came_in_doublings() -> None:
    env = Game2048Env(board_size=3, target=64, max_turns=30)
    env.reset(seed=1)
    player = env.baselines["random"](env, np.random.default_rng(0))
    ended = False
    while not ended:
        _, _, terminated, truncated, info = env.step(player(""))
        ended = terminated or truncated
        assert ("facts" in info) == ended
    assert info["facts"] == {
        "task_type": "game",
        "expected": {"score_doublings": math.log2(1 + 64 * 5)},
        "result": {"score_doublings": math.log2(1 + info["metrics"]["score"])},
        "required_actions": ["move"],
    }


def test_2048_is_fully_accurate_once_the_target_is_reached() -> None:
    env = Game2048Env(board_size=3, target=8, stop_at_target=True)
    recorder = AttemptRecorder()
    recorder.begin(*env.reset(seed=11))
    while not recorder.ended:
        reply = "left" if env.legal[3] else "up" if env.legal[0] else "right"
        recorder.add(reply, *env.step(reply))
    attempt = recorder.attempt("a")
    assert env.score < 16, "tiles that appear as a 4 spare the points of making it"
    assert accuracy(attempt).value == RubricJudge().score(attempt).value == pytest.approx(1.0)


def test_2048_counts_silence_for_nothing() -> None:
    score, facts = judged(Game2048Env(max_turns=3), "train", *["I pass"] * 3)
    assert (facts["result"], score.value) == ({"score_doublings": 0.0}, 0.0)


# --- coding ---

HIDDEN = 7_411_147_411
TRIPLE = Problem(
    id="triple",
    prompt="Return three times a number.",
    entry_point="triple",
    public=(Case((1,), expected=3),),
    hidden=(Case((HIDDEN,), expected=3 * HIDDEN), Case((-HIDDEN,), expected=-3 * HIDDEN)),
)


@pytest.mark.parametrize(
    ("code", "share", "total"),
    [
        ("def triple(n): return 3 * n", 1.0, 1.0),
        ("def triple(n): return 3 * abs(n)", 0.5, 0.4 * 0.5 + 0.3 * 0.5 + 0.3),
        ("def triple(n): return 0", 0.0, 0.3),
        (None, None, 0.0),
    ],
)
def test_coding_tells_the_share_of_hidden_tests_and_nothing_of_them(
    code: str | None, share: float | None, total: float
) -> None:
    try:
        sharing.shared_sandbox()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    env = CodingEnv(problems=[TRIPLE], max_turns=3)
    score, facts = judged(env, "triple", *([f'submit("{code}")'] if code else ["?"] * 3))
    assert facts == {
        "task_type": "code_generation",
        "expected": {"tests_passed": 1.0},
        **({} if share is None else {"result": {"tests_passed": share}}),
        "optimal_turns": 2,
        "required_actions": ["submit"],
    }
    assert str(HIDDEN) not in str(facts)
    assert score.value == pytest.approx(total)
