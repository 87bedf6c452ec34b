import copy
import pickle
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from art_gym.baselines import play_on
from art_gym.envs.mail.baselines import _first_or_last, _likely_value, _narrowed, demonstrator
from art_gym.envs.mail.env import EmailEnv
from art_gym.envs.mail.message import Address
from art_gym.envs.mail.rewards import episode_facts
from art_gym.envs.mail.store.store import query_words
from tests.envs.mail.boxes import BOB, EVE, FALCON_MAILS, FALCON_QUESTIONS, mail, written
from tests.envs.playing import last_info


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("box") / "box.db", FALCON_MAILS).path


@pytest.fixture
def env(box: Path) -> Iterator[EmailEnv]:
    made = EmailEnv(mailbox=box, questions=FALCON_QUESTIONS)
    yield made
    made.close()


def begin(env: EmailEnv, task: str, *replies: str) -> None:
    env.reset(seed=0, options={"task": task})
    for reply in replies:
        env.step(reply)


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
    begin(env, "known_item", search)
    listed = {env.store.message_id(row) for row in env.listed}
    assert not listed & {"m4@fir.example", "m5@fir.example"}
    # Neither can an id be guessed: only what was listed has one.
    for number in range(1, 9):
        observation, *_, info = env.step(f'read("m{number}")')
        assert ("error" in info) == (number > len(listed))
        assert "secret" not in observation
        if info.get("metrics"):
            break


def test_a_snapshot_holds_the_episode_but_no_mailbox(box: Path) -> None:
    env, other = (EmailEnv(mailbox=box, questions=FALCON_QUESTIONS) for _ in range(2))
    begin(env, "known_item", 'search("falcon corrected")')
    snapshot = env.snapshot()
    assert len(snapshot.state) < 5_000
    other.restore(pickle.loads(pickle.dumps(snapshot)))
    assert env.step('select("m1")') == other.step('select("m1")')


def test_what_a_judge_expects_depends_on_what_is_known() -> None:
    for chosen, expected in (("b", "b"), ("c", "c"), ("d", "b")):  # several mails are right
        facts = episode_facts({"kind": "known_item"}, {"mail": chosen}, ["c", "b"], right=chosen == expected)
        assert (facts["expected"], facts["result"]) == ({"mail": expected}, {"mail": chosen})
    asked: dict[str, Any] = {"kind": "fact", "answers": [], "answer_type": None}
    assert "expected" not in episode_facts(asked, {"answer": ""}, [])
    assert "expected" not in episode_facts({"kind": "known_item"}, None, [])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_vector_environment_joins_facts_that_differ(env: EmailEnv, order: tuple[int, ...]) -> None:
    ends = ['select("m1")', 'answer("not in the mailbox")', 'answer("Bob")']
    with closing(gym.vector.SyncVectorEnv([lambda: copy.deepcopy(env)] * 3)) as envs:
        envs.reset(seed=1, options={"task": "known_item"})
        envs.step(np.array(['search("falcon corrected")'] * 3, dtype=object))
        facts = envs.step(np.array([ends[index] for index in order], dtype=object))[4]["facts"]
    at = {index: place for place, index in enumerate(order)}
    assert list(facts["_result"][[at[0], at[1], at[2]]]) == [True, False, True]
    assert facts["result"]["mail"][at[0]] == "m2@fir.example"
    assert facts["result"]["answer"][at[2]] == "Bob"


def test_a_mailbox_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.db"):
        EmailEnv(mailbox=tmp_path / "none.db")


def test_a_long_subject_and_many_recipients_leave_room_for_the_rest(tmp_path: Path) -> None:
    crowd = tuple(Address(f"Person {number}", f"p{number}@fir.example") for number in range(900))
    sent = replace(mail(2, BOB, "long " * 9_000, "the text", day=0), to=crowd)
    env = EmailEnv(mailbox=written(tmp_path / "box.db", [sent]).path, questions=FALCON_QUESTIONS[:1])
    begin(env, "known_item")
    assert env.step('search("text")')[0].count("long") == 40
    shown = env.step('read("m1")')[0]
    assert "Person 0 <p0@fir.example>, Person 1 <" in shown
    assert "\n\nthe text" in shown
    assert len(shown) < 2_500


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


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_no_player_without_a_language_model_solves_a_level(level: int) -> None:
    env = EmailEnv(difficulty=level, split="test")
    for name in env.baselines:
        assert np.mean([last_info(env, name, seed)["success"] for seed in range(50)]) < 0.6, name
    if level == 1:
        assert 0.1 < np.mean([last_info(env, "demonstrator", seed)["success"] for seed in range(60)]) < 0.5


def test_among_lookalikes_the_demonstrator_uses_sender_date_and_order_as_asked() -> None:
    env = EmailEnv(difficulty=2)
    assert 0.5 <= np.mean([last_info(env, "demonstrator", seed)["success"] for seed in range(100)]) < 0.75
    right = []
    for task in env.tasks.split("train"):
        env.reset(seed=0, options={"task": task.id})
        words = [word for word in query_words(task.prompt) if word in task.data["telling"]]
        env.step(env.tools["search"].render(_narrowed(words, task.prompt)))
        right.append(_first_or_last(env) in env._gold)
    assert np.mean(right) >= 0.8


@pytest.mark.parametrize(("level", "least"), [(3, 0.5), (4, 0.1)])
def test_for_a_fact_the_demonstrator_reads_before_it_answers(level: int, least: float) -> None:
    env = EmailEnv(difficulty=level)
    solved = 0
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        steps = list(play_on(env, demonstrator(env, np.random.default_rng(seed)), observation))
        replies = [reply for reply, *_ in steps]
        solved += steps[-1][-1]["success"]
        sources = replies[-1].partition("sources=")[2].strip("[])").replace('"', "").split(", ")
        assert all(f'read("{source}")' in replies for source in sources if source), replies
    assert solved / 40 >= least


@pytest.mark.parametrize(
    ("asked", "dates"),
    [
        ("I need the expenses by Ann Fell written in February 2024.", ("2024-02-01", "2024-02-29")),
        ("Find the expenses mail from Ann Fell, sent on 3 May 2023.", ("2023-05-03", "2023-05-03")),
    ],
)
def test_what_a_search_among_lookalikes_is_narrowed_to(asked: str, dates: tuple[str, str]) -> None:
    words, named = ["expenses", "ann", "fell"], {"query": "expenses", "sender": "Ann Fell"}
    assert _narrowed(words, asked) == named | dict(zip(("after", "before"), dates, strict=True))
    assert _narrowed(words, "Which was the last expenses mail from Ann Fell?") == named | {"limit": 4}
    assert _narrowed(["swan"], "Find the first mail of the Swan audit.") == {"query": "swan", "limit": 1}


def test_the_demonstrator_does_not_know_which_mail_is_right() -> None:
    env = EmailEnv(difficulty=[1, 2])
    for seed in range(20):
        replies = []
        for gold in (True, False):
            observation, _ = env.reset(seed=seed)
            env._gold = env._gold if gold else frozenset()
            act = demonstrator(env, np.random.default_rng(seed))
            replies.append([said for said, *_ in play_on(env, act, observation)])
        assert replies[0] == replies[1]


@pytest.mark.parametrize(
    ("asked", "guess"),
    [
        ("What is the e-mail address of Eve Lund?", "eve@fir.example"),
        ("What is the address of our bank?", "bank@x.org"),
        ("What is Eve's phone number?", "+49 (30) 1234-56"),
        ("On which website is it?", "https://x.org/a"),
        ("By how many percent did it fall?", "3.5%"),
    ],
)
def test_what_scripted_policies_answer_to_questions_as_people_ask_them(asked: str, guess: str) -> None:
    body = "It fell 3.5% in 2 days, see <https://x.org/a>; call +49 (30) 1234-56 or write to bank@x.org."
    assert _likely_value(mail(1, EVE, "Bank", body, day=0), asked) == guess
