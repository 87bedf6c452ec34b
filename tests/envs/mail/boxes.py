"""Small mailboxes and the questions about them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.questions import Question
from art_gym.envs.mail.store.store import MailStore, MailStoreWriter

ANN = Address("Ann Berg", "ann@fir.example")
BOB = Address("Bob Fell", "bob@fir.example")
EVE = Address("Eve Lund", "eve@fir.example")


def written(path: Path, messages: Iterable[Message], **meta: str) -> MailStore:
    """The store at ``path``, made of these messages."""
    with MailStoreWriter(path, meta) as writer:
        for message in messages:
            writer.add(message)
    return MailStore(path)


def mail(number: int, sender: Address, subject: str, body: str, *, day: int, box: str = "ann") -> Message:
    sent = datetime(2024, 3, 1, 9, 0, tzinfo=UTC) + timedelta(days=day)
    return Message(
        f"m{number}@fir.example", sent, sender, (ANN,), subject=subject, body=body, mailboxes=(box,)
    )


def question(id: str, text: str, gold: list[int], *answers: str) -> Question:
    """A question that is asked on March 20; ``id`` is its kind and, after a dash, the type of its answer."""
    kind, _, answer_type = id.partition("-")
    fields: dict[str, Any] = {"kind": kind, "answer_type": answer_type or None}
    return Question(
        id=id,
        text=text,
        difficulty=1,
        gold_ids=tuple(f"m{number}@fir.example" for number in gold),
        answers=answers,
        split="train",
        asked_on=datetime(2024, 3, 20, tzinfo=UTC),
        mailbox="ann",
        keywords=("falcon", "corrected"),
        **fields,
    )


FALCON_MAILS = [
    mail(1, BOB, "Falcon budget", "The Falcon budget is 1,250 EUR for pallets.", day=0),
    mail(2, BOB, "Falcon budget, corrected", "Sorry, the Falcon budget is 1,400 EUR.", day=2),
    mail(3, EVE, "Lunch", "Lunch is at noon. " + "The menu is long. " * 200, day=4),
    mail(4, EVE, "Falcon pallets", "The pallets for Falcon came.", day=30),
    mail(5, EVE, "Falcon secret", "The Falcon secret is in another box.", day=1, box="eve"),
    mail(6, EVE, "Parking", "Park behind house two.", day=5),
]
FALCON_QUESTIONS = [
    question("known_item", "Find the mail with the corrected Falcon budget.", [2]),
    question("fact-amount", "How much is the Falcon budget in the end?", [2], "1,400 EUR", "EUR 1400"),
    question("fact-text", "What came in the second mail?", [2], "a corrected budget"),
    question("unanswerable", "What is the Raven budget?", []),
]
