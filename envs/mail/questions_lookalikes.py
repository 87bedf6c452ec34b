"""Known-item questions of difficulty 2: words do not suffice; sender, date or first and last must decide."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from art_gym.envs.mail.questions_known import Mailroom
from art_gym.envs.mail.questions_model import Question
from art_gym.envs.mail.questions_phrases import LOOKALIKE
from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_words import MONTHS

_CROWD = 3
"""So many look-alikes, at least, are visible when the question is asked."""


def lookalikes(room: Mailroom, dice: Dice, splits: list[str], count: int) -> list[Question]:
    """Up to ``count`` questions: half about runs of similar mails, half about the ends of conversations."""
    runs = _from_series(room, dice, splits)
    threads = _from_threads(room, dice, splits)
    half = max(count // 2, count - len(threads))
    chosen = dice.sample(runs, half)
    return chosen + dice.sample(threads, count - len(chosen))


def _from_series(room: Mailroom, dice: Dice, splits: list[str]) -> list[Question]:
    """Which mail of a series: the one of that sender in that month, or the sender's first or last."""
    runs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, message in enumerate(room.world.messages):
        note = room.world.notes[message.message_id]
        if note.series:
            runs[note.series, note.sender.name].append(row)
    made = []
    for (series, sender), rows in runs.items():
        title = series.removeprefix("Reminder: ").lower()
        if series.startswith("status "):
            title = f"{series.removeprefix('status ')} status"
        for row in rows:
            asked_on = room.asked_on(dice, rows[min(len(rows) - 1, rows.index(row) + _CROWD)])
            seen = [other for other in rows if room.dates[other] <= asked_on]
            if len(seen) < _CROWD:
                continue
            form, when = _pick_form(room, row, seen)
            text = dice.pick(LOOKALIKE[form]).format(k=title, s=sender, when=when)
            telling = (*title.lower().split(), *sender.lower().split())
            made.append(_question(room, row, text, asked_on, splits, telling))
    return made


def _pick_form(room: Mailroom, row: int, seen: list[int]) -> tuple[str, str]:
    if row == seen[0]:
        return "first", ""
    if row == seen[-1]:
        return "last", ""
    day = room.dates[row]
    month = [
        other for other in seen if (room.dates[other].year, room.dates[other].month) == (day.year, day.month)
    ]
    if len(month) == 1:
        return "dated", f"in {MONTHS[day.month - 1]} {day.year}"
    return "dated", f"on {day.day} {MONTHS[day.month - 1]} {day.year}"


def _from_threads(room: Mailroom, dice: Dice, splits: list[str]) -> list[Question]:
    """The first or the last mail of a conversation of at least three mails."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row, message in enumerate(room.world.messages):
        rows[room.world.notes[message.message_id].thread].append(row)
    about = {fact.thread: fact.about for fact in room.world.facts if "project" in fact.about}
    made = []
    for thread, members in rows.items():
        if thread not in about or len(members) < _CROWD:
            continue
        words = {"p": about[thread]["project"], "t": about[thread]["topic"], "d": about[thread]["thing"]}
        last = dice.chance(50)
        asked_on = room.asked_on(dice, members[-1])
        text = dice.pick(LOOKALIKE["closing" if last else "opening"]).format(**words)
        telling = tuple(word.lower() for word in words.values())
        made.append(_question(room, members[-1 if last else 0], text, asked_on, splits, telling))
    return made


def _question(
    room: Mailroom, row: int, text: str, asked_on: datetime, splits: list[str], telling: tuple[str, ...]
) -> Question:
    message = room.world.messages[row]
    return Question(
        id=f"like-{row:05d}",
        text=text,
        kind="known_item",
        difficulty=2,
        gold_ids=(message.message_id,),
        answers=(),
        answer_type=None,
        split=splits[room.world.notes[message.message_id].thread],
        asked_on=asked_on,
        mailbox=room.world.owner,
        telling=telling,
    )
