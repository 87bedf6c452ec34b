from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from art_gym.envs.mail.env import EmailEnv
from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.questions import Question
from art_gym.envs.mail.store.store import MailStoreWriter

ANN, BOB, EVE = (
    Address(n, f"{n.split()[0].lower()}@fir.example") for n in ("Ann Berg", "Bob Fell", "Eve Lund")
)
START = datetime(2024, 3, 1, 9, 0, tzinfo=UTC)
ASKED = datetime(2024, 3, 20, tzinfo=UTC)


def mail(number: int, sender: Address, subject: str, body: str, *, day: int, box: str = "ann") -> Message:
    sent = START + timedelta(days=day)
    return Message(
        f"m{number}@fir.example", sent, sender, (ANN,), subject=subject, body=body, mailboxes=(box,)
    )


MAILS = [
    mail(1, BOB, "Falcon budget", "The Falcon budget is 1,250 EUR for pallets.", day=0),
    mail(2, BOB, "Falcon budget, corrected", "Sorry, the Falcon budget is 1,400 EUR.", day=2),
    mail(3, EVE, "Lunch", "Lunch is at noon. " + "The menu is long. " * 200, day=4),
    mail(4, EVE, "Falcon pallets", "The pallets for Falcon came.", day=30),
    mail(5, EVE, "Falcon secret", "The Falcon secret is in another box.", day=1, box="eve"),
]


def question(
    kind: str, text: str, gold: list[int], answers: list[str], answer_type: str | None = None
) -> Question:
    return Question(
        id=f"{kind}-{'-'.join(map(str, gold))}",
        text=text,
        kind=kind,  # type: ignore[arg-type]
        difficulty=1 if kind == "known_item" else 3,
        gold_ids=tuple(f"m{n}@fir.example" for n in gold),
        answers=tuple(answers),
        answer_type=answer_type,  # type: ignore[arg-type]
        split="train",
        asked_on=ASKED,
        mailbox="ann",
        telling=("falcon", "corrected"),
    )


QUESTIONS = [
    question("known_item", "Find the mail with the corrected Falcon budget.", [2], []),
    question("fact", "How much is the Falcon budget in the end?", [2], ["1,400 EUR"], "amount"),
    question("unanswerable", "What is the Raven budget?", [], []),
]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("box") / "box.db"
    with MailStoreWriter(path) as writer:
        for message in MAILS:
            writer.add(message)
    return path


@pytest.fixture
def env(box: Path) -> Iterator[EmailEnv]:
    made = EmailEnv(mailbox=box, questions=QUESTIONS)
    yield made
    made.close()


def begin(env: EmailEnv, kind: str) -> str:
    task = next(task.id for task in env.tasks if task.id.startswith(kind))
    return env.reset(seed=0, options={"task": task})[0]


def play(env: EmailEnv, kind: str, *replies: str) -> tuple[Any, ...]:
    begin(env, kind)
    result: tuple[Any, ...] = ()
    for reply in replies:
        result = env.step(reply)
    return result


def test_results_are_one_line_a_mail_newest_first_with_count_and_id_last(env: EmailEnv) -> None:
    observation = play(env, "known_item", 'search("falcon budget")')[0]
    lines = observation.split("\n")
    assert lines[0] == "2 mails:"
    assert lines[1].startswith("2024-03-03 | Bob Fell | Falcon budget, corrected | ")
    assert lines[1].endswith(" | 2/2 | m1")
    assert lines[2].startswith("2024-03-01 | Bob Fell | Falcon budget | ")
    assert lines[2].endswith(" | 2/2 | m2")


@pytest.mark.parametrize(
    "search",
    [
        'search("falcon")',
        'search("secret")',
        'search("")',
        'search("pallets came", after="2024-03-25")',
        'search("", sender="eve")',
        'search("falcon", recipient="ann", limit=20)',
    ],
)
def test_nobody_sees_later_mail_or_another_mailbox(env: EmailEnv, search: str) -> None:
    play(env, "known_item", search)
    listed = {env.store.message_id(row) for row in env.listed}
    assert not listed & {"m4@fir.example", "m5@fir.example"}
    # Neither can an id be guessed: only what was listed has one.
    for number in range(1, 9):
        observation, *_, info = env.step(f'read("m{number}")')
        assert ("error" in info) == (number > len(listed))
        assert "secret" not in observation
        if info.get("metrics"):
            break


def test_a_right_selection_succeeds_and_pays(env: EmailEnv) -> None:
    *_, reward, terminated, _, info = play(env, "known_item", 'search("falcon corrected")', 'select("m1")')
    assert terminated
    assert info["success"] is True
    assert info["score_terms"] == {"correct": 1.0, "quick": pytest.approx(0.1 * 6 / 8)}
    assert reward == pytest.approx(1.075)
    assert info["metrics"]["found"] == 1.0


def test_a_wrong_selection_costs_more_than_giving_up(env: EmailEnv) -> None:
    wrong = play(env, "known_item", 'search("lunch")', 'select("m1")')
    gave_up = play(env, "known_item", 'search("lunch")', 'answer("not in the mailbox")')
    assert wrong[4]["success"] is gave_up[4]["success"] is False
    assert wrong[1] == -0.5
    assert gave_up[1] == 0.0


def test_progress_is_paid_once_and_only_without_success(env: EmailEnv) -> None:
    search, read = 'search("falcon corrected")', 'read("m1")'
    failed = play(env, "known_item", search, read, read, search, 'answer("not in the mailbox")')
    assert failed[4]["score_terms"] == {"found": 0.1, "read": 0.1}
    straight = play(env, "known_item", search, 'select("m1")')
    with_reading = play(env, "known_item", search, read, 'select("m1")')
    assert set(with_reading[4]["score_terms"]) == {"correct", "quick"}
    assert with_reading[1] < straight[1]


def test_running_out_of_turns_is_giving_up(box: Path) -> None:
    env = EmailEnv(mailbox=box, questions=QUESTIONS, max_turns=2)
    _, reward, terminated, truncated, info = play(env, "known_item", 'search("falcon")', 'read("m1")')
    assert (terminated, truncated) == (False, True)
    assert info["success"] is False
    assert reward == pytest.approx(sum(info["score_terms"].values()))
    assert info["score_terms"]["found"] == 0.1


@pytest.mark.parametrize(
    ("reply", "success", "sources"),
    [
        ('answer("1,400 EUR", sources=["m1"])', True, 0.1),
        ('answer("1400 euros")', True, None),
        ('answer("1,400 EUR", sources=["m1", "m2"])', True, 0.05),
        ('answer("1,250 EUR", sources=["m2"])', False, None),
        ('answer("1,250 EUR or 1,400 EUR")', False, None),
        ('select("m1")', False, None),
    ],
)
def test_answers_are_graded_by_value_and_sources(
    env: EmailEnv, reply: str, success: bool, sources: float | None
) -> None:
    info = play(env, "fact", 'search("falcon budget")', reply)[4]
    assert info["success"] is success
    assert info["score_terms"].get("sources") == (None if sources is None else pytest.approx(sources))


@pytest.mark.parametrize(
    ("kind", "replies", "success", "reward"),
    [
        ("unanswerable", ['answer("not in the mailbox")'], True, 1.0875),
        ("unanswerable", ['search("falcon")', 'answer("1,400 EUR")'], False, -0.5),
        ("fact", ['answer("not in the mailbox")'], False, 0.0),
    ],
)
def test_saying_that_nothing_answers_is_right_only_if_it_is_so(
    env: EmailEnv, kind: str, replies: list[str], success: bool, reward: float
) -> None:
    result = play(env, kind, *replies)
    assert (result[1], result[4]["success"]) == (pytest.approx(reward), success)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ('select("m9")', "ids so far are m1 to m2"),
        ('read("m1", page=2)', "no page 2"),
        ('read("m1", page=0)', "no page 0"),
        ('search("x", limit=0)', "limit must be from 1 to 20"),
        ('search("x", limit=1000)', "limit must be from 1 to 20"),
        ('search("x", after="2024-03-05", before="2024-03-01")', "must not be later"),
        ('answer("x", sources=["m1", "m77"])', "no mail `m77`"),
        ('sort("size")', "relevance"),
    ],
)
def test_calls_that_make_no_sense_are_refused_in_words(env: EmailEnv, reply: str, words: str) -> None:
    observation, reward, terminated, _, info = play(env, "known_item", 'search("falcon budget")', reply)
    assert words in observation
    assert "error" in info
    assert reward == -0.2
    assert not terminated


@pytest.mark.parametrize("reply", ['filter(sender="bob")', 'sort("date")', 'select("m1")', 'read("m1")'])
def test_results_are_needed_first(env: EmailEnv, reply: str) -> None:
    assert "search first" in play(env, "known_item", reply)[0]


def test_at_most_three_sources(env: EmailEnv) -> None:
    play(env, "fact", 'search("")')
    assert len(env.listed) == 3
    env.step('search("", limit=20)')
    env._ids[99] = 4  # a fourth listed mail, which this small box lacks
    assert "at most 3" in env.step('answer("x", sources=["m1", "m2", "m3", "m4"])')[0]


def test_filter_and_sort_work_on_the_current_results(env: EmailEnv) -> None:
    def dates(reply: str) -> list[str]:
        return [line.split(" | ")[0] for line in env.step(reply)[0].split("\n")[1:]]

    play(env, "known_item", 'search("falcon the")')
    assert len(env.results) == 3
    observation = env.step('filter(sender="bob")')[0]
    assert observation.startswith("2 mails:")
    assert "Eve" not in observation
    assert dates('sort("date")') == ["2024-03-01", "2024-03-03"]
    assert dates('sort("date", descending=True)') == ["2024-03-03", "2024-03-01"]
    assert env.step('filter(contains="corrected 1,400")')[0].startswith("1 mail:")
    assert env.step('filter(before="2023-01-01")')[0].startswith("No mail matches.")


def test_ids_stay_with_their_mail_through_an_episode(env: EmailEnv) -> None:
    play(env, "known_item", 'search("lunch")')
    assert "| m1" in env.step('search("lunch menu")')[0]
    observation = env.step('search("falcon budget")')[0]
    assert {line.rsplit(" | ", 1)[1] for line in observation.split("\n")[1:3]} == {"m2", "m3"}


def test_long_mails_have_pages(env: EmailEnv) -> None:
    first = play(env, "known_item", 'search("lunch")', 'read("m1")')[0]
    assert "From: Eve Lund <eve@fir.example>" in first
    assert "Subject: Lunch" in first
    assert "(page 1 of 3)" in first
    assert "(page 3 of 3)" in env.step('read("m1", page=3)')[0]


def test_shaped_pays_for_new_results_only_and_at_most_one(box: Path) -> None:
    env = EmailEnv(mailbox=box, questions=QUESTIONS, reward="shaped", max_turns=40)
    begin(env, "known_item")
    first = env.step('search("falcon budget")')
    assert first[4]["score_terms"]["relevance"] > 0
    assert first[4]["score_terms"]["diversity"] == pytest.approx(0.05)
    again = env.step('search("falcon budget")')
    assert again[4]["score_terms"] == {"nothing_found": -0.1}
    total = first[1]
    for word in ["lunch", "menu", "pallets", "sorry", "corrected", "the", "noon"] * 3:
        total += max(0.0, env.step(f'search("{word}")')[1])
    assert total <= 1.0 + 1e-9
    assert env.step('search("zebra")')[4]["score_terms"] == {"nothing_found": -0.1}


def test_a_snapshot_holds_the_episode_but_no_mailbox(box: Path) -> None:
    env, other = (EmailEnv(mailbox=box, questions=QUESTIONS) for _ in range(2))
    play(env, "known_item", 'search("falcon corrected")')
    snapshot = env.snapshot()
    assert len(snapshot.state) < 5_000
    other.restore(pickle.loads(pickle.dumps(snapshot)))
    assert env.step('select("m1")') == other.step('select("m1")')


def test_a_mailbox_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.db"):
        EmailEnv(mailbox=tmp_path / "none.db")


def test_the_default_world_is_shared_and_has_every_difficulty() -> None:
    env, other = gym.make("art/Email-v0").unwrapped, gym.make("art/Email-v0").unwrapped
    assert isinstance(env, EmailEnv)
    assert isinstance(other, EmailEnv)
    assert env.store is other.store
    assert len(env.store) >= 5_000
    assert {task.data["difficulty"] for task in env.tasks} == {1, 2, 3, 4}
    assert set(env.tasks.splits) == {"train", "validation", "test"}
    only = gym.make("art/Email-v0", difficulty=[1, 2]).unwrapped
    assert isinstance(only, EmailEnv)
    assert {task.data["difficulty"] for task in only.tasks} == {1, 2}


def played(env: EmailEnv, name: str, seed: int) -> bool:
    """Whether a player succeeds, by valid calls alone."""
    observation, _ = env.reset(seed=seed)
    act = {**env.baselines, **env.teachers}[name](env, np.random.default_rng(seed))
    done = False
    while not done:
        observation, _, terminated, truncated, info = env.step(act(observation))
        assert "error" not in info
        done = terminated or truncated
    return bool(info["success"])


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("random", 0.0, 0.05), ("bm25", 0.2, 0.55), ("scripted", 0.4, 0.7), ("demonstrator", 0.12, 0.5)],
)
def test_how_well_the_players_play(name: str, least: float, most: float) -> None:
    env = EmailEnv(difficulty=1)
    assert least <= np.mean([played(env, name, seed) for seed in range(60)]) < most
    harder = EmailEnv(difficulty=[2, 3, 4])
    for seed in range(10):
        played(harder, name, seed)
