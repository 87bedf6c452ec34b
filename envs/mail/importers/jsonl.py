"""Parse one line of JSON into a :class:`Message`.

The keys: ``message_id``, ``date`` (ISO 8601), ``from``, ``to``, ``cc``, ``bcc``, ``subject``, ``body``,
``folders``, ``dup_ids`` and, for names beside bare addresses, ``x_from`` and ``x_to``. All may be missing but
one of ``message_id``, ``from``, ``subject`` and ``body``. Example::

    {"message_id": "<1@x.org>", "date": "2024-05-01T09:30:00Z", "from": "Ann <ann@x.org>",
     "to": ["bob@x.org"], "subject": "Lunch", "body": "At noon?", "folders": ["ann/sent"]}
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from art_gym.envs.mail.importers.parse import (
    NotMailError,
    Parsed,
    bounded,
    parse_addresses,
    parse_date,
    usable_date,
)
from art_gym.envs.mail.message import Address, Message, bare_id

_NEEDED = ("message_id", "from", "subject", "body")
_NAME_BEFORE_ANGLE = re.compile(r"\s*([^<>]*?)\s*<[^<>]*>(?:@\w+)?\s*(?:,|$)")


def parse_json(line: bytes, mailbox: str = "") -> Parsed:
    """Read one line.

    Args:
        line: A JSON object in UTF-8.
        mailbox: The mailbox of a message without ``folders``.

    Raises:
        NotMailError: It is no JSON object, or one without any of the keys a message needs.
    """
    try:
        record: Any = json.loads(line.decode("utf-8", "replace"))
    except RecursionError as error:
        raise NotMailError("JSON nested too deeply") from error
    except ValueError as error:
        raise NotMailError("no JSON") from error
    if not isinstance(record, dict):
        raise NotMailError("no JSON object")
    if not any(record.get(key) for key in _NEEDED):
        raise NotMailError(f"a JSON object without {', '.join(_NEEDED)}")
    return _message(record, line, mailbox)


def _message(record: dict[str, Any], line: bytes, mailbox: str) -> Parsed:
    folders = _texts(record.get("folders"))
    sender = _people(record.get("from"), _text(record.get("x_from")))
    message = Message(
        message_id=bare_id(_text(record.get("message_id"))),
        date=_date(_text(record.get("date"))),
        sender=sender[0] if sender else Address(),
        to=_people(record.get("to"), _text(record.get("x_to"))),
        cc=_people(record.get("cc")),
        bcc=_people(record.get("bcc")),
        subject=" ".join(_text(record.get("subject")).split()),
        body=_text(record.get("body")).replace("\r\n", "\n"),
        folders=folders,
        mailboxes=tuple(dict.fromkeys(folder.split("/")[0].lower() for folder in folders)) or (mailbox,),
        duplicate_ids=tuple(bare_id(other) for other in _texts(record.get("dup_ids"))),
    )
    return bounded(message, line)


def _text(value: object) -> str:
    """A field as text: what is no text, number or truth value is none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) else ""


def _texts(value: object) -> tuple[str, ...]:
    """A field that is a list of texts, or one text."""
    items = value if isinstance(value, list) else [value]
    return tuple(text for item in items if (text := _text(item).strip()))


def _date(value: str) -> datetime | None:
    """An ISO 8601 date, or one as in a mail's header; a date without a zone is in UTC."""
    try:
        return usable_date(datetime.fromisoformat(value.strip()))
    except ValueError:
        return parse_date(value)


def _people(value: object, names: str = "") -> tuple[Address, ...]:
    """The addresses in a field; bare ones get the display names of the ``x_`` field when the counts agree."""
    people = [who for text in _texts(value) for who in parse_addresses(text)]
    if names and not any(who.name for who in people):
        found = _NAME_BEFORE_ANGLE.findall(names) if "<" in names else names.split(",")
        found = [names.split("<")[0]] if len(people) == 1 else found
        if len(found) == len(people):
            named = zip(people, found, strict=True)
            people = [Address(_name(name, who.email), who.email) for who, name in named]
    return tuple(dict.fromkeys(people))


def _name(name: str, email: str) -> str:
    """A display name without quotes; none when it only repeats the address."""
    name = name.strip(" '\",")
    return "" if name.lower() == email else name[:500]
