"""The e-mail message: plain frozen data that importers make, stores keep and tools show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Address:
    """A person or a list in a header: ``name`` as displayed (may be empty), ``email`` in lower case."""

    name: str = ""
    email: str = ""

    def __str__(self) -> str:
        if self.name and self.email:
            return f"{self.name} <{self.email}>"
        return self.name or self.email

    @property
    def label(self) -> str:
        """The shortest text a reader recognises the person by: the name, else the address."""
        return self.name or self.email


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        message_id: The Message-ID without angle brackets.
        date: When it was sent, aware and in UTC; ``None`` if that is unknown.
        sender: Who sent it.
        to: The main recipients.
        cc: Those copied.
        bcc: Those copied blindly.
        subject: The subject, on one line.
        body: The text, without markup; attachments appear by name only.
        folders: Its folders, for example ``allen-p/inbox``.
        mailboxes: The mailboxes it is in: lower-case addresses or the roots of ``folders``.
        duplicate_ids: Message-IDs of other copies of the same text.
    """

    message_id: str
    date: datetime | None
    sender: Address
    to: tuple[Address, ...] = ()
    cc: tuple[Address, ...] = ()
    bcc: tuple[Address, ...] = ()
    subject: str = ""
    body: str = ""
    folders: tuple[str, ...] = ()
    mailboxes: tuple[str, ...] = ()
    duplicate_ids: tuple[str, ...] = ()

    @property
    def people(self) -> tuple[Address, ...]:
        """The sender and every recipient."""
        return (self.sender, *self.to, *self.cc, *self.bcc)

    @property
    def ids(self) -> tuple[str, ...]:
        """Every Message-ID this mail is known by, its own first."""
        return (self.message_id, *self.duplicate_ids)


def bare_id(message_id: str) -> str:
    """A Message-ID without its angle brackets and surrounding space."""
    return message_id.strip().removeprefix("<").removesuffix(">").strip()


def to_utc(moment: datetime) -> datetime:
    """The same moment in UTC; a naive one is taken to be in UTC already."""
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC)
