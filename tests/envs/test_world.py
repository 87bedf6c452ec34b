import re
import time
from collections import Counter

import pytest

from art_gym.envs.mail.world import World, generate, vocabulary
from art_gym.envs.mail.world_kinds import KINDS
from art_gym.envs.mail.world_words import (
    COMPANIES,
    CONTEXTS,
    CUSTOMERS,
    DETAILS,
    FIRST_NAMES,
    PLACES,
    PROJECTS,
    SURNAMES,
)

_WORD = re.compile(r"[^\W\d_]+")


@pytest.fixture(scope="module")
def world() -> World:
    return generate(7)


def _text(world: World, row: int) -> str:
    message = world.messages[row]
    people = " ".join(f"{person.name} {person.email}" for person in message.people)
    return f"{message.subject}\n{people}\n{message.body}".lower()


def test_the_same_seed_gives_the_same_mailbox_and_another_seed_another(world: World) -> None:
    again = generate(7)
    assert again.messages == world.messages
    assert again.facts == world.facts
    other = generate(8, messages=1000)
    assert {m.body for m in other.messages}.isdisjoint(m.body for m in world.messages if len(m.body) > 300)


def test_a_default_mailbox_is_large_ordered_and_quickly_made() -> None:
    start = time.process_time()
    world = generate(3)
    assert time.process_time() - start < 3
    assert len(world.messages) >= 6000
    dates = [message.date for message in world.messages if message.date is not None]
    assert len(dates) == len(world.messages)
    assert dates == sorted(dates)
    assert (dates[0].date().isoformat(), dates[-1].date().isoformat()) >= ("2023-01-02", "2024-01-01")
    assert dates[-1].date().isoformat() <= "2024-12-22"


def test_message_ids_are_unique_and_every_mail_lies_in_the_one_mailbox(world: World) -> None:
    ids = [one for message in world.messages for one in message.ids]
    assert len(set(ids)) == len(ids)
    assert {message.mailboxes for message in world.messages} == {(world.owner,)}
    assert sum(bool(message.duplicate_ids) for message in world.messages) > 50


@pytest.mark.parametrize("seed", [0, 11, 4242])
def test_no_word_lies_outside_the_closed_vocabulary(seed: int) -> None:
    known = set(vocabulary())
    world = generate(seed, messages=2500)
    used = {word for row in range(len(world.messages)) for word in _WORD.findall(_text(world, row))}
    assert used - known == set()


def test_the_vocabulary_is_sorted_lower_case_and_small() -> None:
    words = vocabulary()
    assert words == sorted(set(words))
    assert len(words) <= 2600
    assert all(re.fullmatch(r"[a-z]+", word) for word in words)


def test_the_pools_share_no_word() -> None:
    pools = (FIRST_NAMES, SURNAMES, PROJECTS, CUSTOMERS, PLACES, DETAILS, CONTEXTS, COMPANIES)
    count = Counter(word.lower() for pool in pools for word in pool)
    assert [word for word, number in count.items() if number > 1] == []


def test_there_are_at_least_ten_kinds_and_every_project_has_most_of_them(world: World) -> None:
    assert len(KINDS) >= 10
    topics = {topic: kind.name for kind in KINDS for topic in kind.topics}
    for project in world.company.projects:
        kinds = {topics[f.about["topic"]] for f in world.facts if f.about.get("project") == project.name}
        assert len(kinds) >= 10


def test_conversations_answer_quote_forward_and_correct(world: World) -> None:
    subjects = Counter(message.subject.split(":")[0] for message in world.messages)
    assert subjects["Re"] > 1000
    assert subjects["Fwd"] > 200
    assert sum("\n> " in message.body for message in world.messages) > 500
    assert sum(len(fact.said) > 1 for fact in world.facts) > 200


def test_every_statement_of_a_fact_is_in_its_mail_and_in_the_senders_own_words(world: World) -> None:
    by_id = {message.message_id: message for message in world.messages}
    for fact in world.facts:
        moments = [moment for _, moment, _ in fact.said]
        assert moments == sorted(moments)
        for message_id, moment, value in fact.said:
            message, note = by_id[message_id], world.notes[message_id]
            assert message.date == moment
            shown = note.sender.style.show(value, fact.value_type)
            assert shown.lower() in message.body[: note.own].lower()


def test_project_topic_and_thing_belong_to_one_conversation(world: World) -> None:
    owners: dict[tuple[str, ...], set[int]] = {}
    for fact in world.facts:
        if "thing" in fact.about:
            owners.setdefault(tuple(fact.about.values()), set()).add(fact.thread)
    assert {len(threads) for threads in owners.values()} == {1}


def test_people_write_in_different_ways(world: World) -> None:
    opens = Counter(message.body.split("\n")[0].split(" ")[0] for message in world.messages)
    assert len([word for word, count in opens.items() if count > 50]) >= 8
    assert len({message.body for message in world.messages}) > 0.98 * len(world.messages)


@pytest.mark.parametrize(("seed", "messages"), [(-1, 100), (1, 0)])
def test_senseless_arguments_are_refused_with_words(seed: int, messages: int) -> None:
    with pytest.raises(ValueError, match="seed must be >= 0 and messages >= 1"):
        generate(seed, messages)
