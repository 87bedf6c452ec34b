"""What a journal notes of one attempt, as a line of JSON with its own checksum.

::

    {"sum":"<crc32, 8 hex digits>","entry":{"format":1,"task":{…},"member":0,"round":0,…}}

The checksum is that of the entry's bytes as they stand there: nothing is parsed before it is right. CRC-32
finds every flipped bit and every burst of up to 32; against somebody who writes into the file on purpose
nothing here helps, nor need it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art_trainer.episodes import Episode
from art_trainer.records.encoding import decode_episode, encode_episode
from art_trainer.starts import GroupTask
from art_trainer.timings import EpisodeTiming, TurnTiming

FORMAT = 1
"""Version of the lines; a reader refuses another."""
_HEAD, _MIDDLE, _TAIL = b'{"sum":"', b'","entry":', b"}\n"
_SUM = slice(len(_HEAD), len(_HEAD) + 8)
_ENTRY = slice(_SUM.stop + len(_MIDDLE), -len(_TAIL))


@dataclass(frozen=True, slots=True)
class Entry:
    """How an attempt ended."""

    task: GroupTask
    member: int
    """Which attempt of the group, from 0."""
    round: int
    """How often the attempt had been asked for again before; of several entries the highest counts."""
    episode: Episode | None
    """``None``: nobody could play it."""
    timing: EpisodeTiming | None = None
    client: str = ""
    """Who played it."""
    reason: str = ""
    """Why nobody could play it."""


def encode_line(entry: Entry) -> bytes:
    """Return an entry's line, with its end.

    Raises:
        TypeError: Where an episode's facts, metrics or a call hold what JSON cannot.
    """
    task = entry.task
    place = {
        "format": FORMAT,
        "task": {
            "seed": task.seed,
            "size": task.size,
            "rng_seed": task.rng_seed,
            "options": None if task.options is None else dict(task.options),
            "batch": task.batch,
        },
        "member": entry.member,
        "round": entry.round,
        "client": entry.client,
        "reason": entry.reason,
        "timing": _encode_timing(entry.timing),
        "played": entry.episode is not None,
    }
    text = json.dumps(place) if entry.episode is None else encode_episode(entry.episode, place)
    data = text.encode("ascii")
    return b"".join((_HEAD, _checksum(data), _MIDDLE, data, _TAIL))


def is_whole(line: bytes) -> bool:
    """Whether a line, its end included, is one that :func:`encode_line` wrote, bit for bit."""
    data = line[_ENTRY]
    return line == b"".join((_HEAD, _checksum(data), _MIDDLE, data, _TAIL))


def is_torn(line: bytes) -> bool:
    """Whether a file's last line is the beginning of one, as a write that was cut off leaves it."""
    return not line.endswith(b"\n") and not is_whole(line[:-1] + b"\n")


def decode_line(line: bytes) -> Entry:
    """Read a whole line.

    Raises:
        ValueError: Where it is damaged, or of another format.
    """
    if not is_whole(line):
        raise ValueError("the line is not as it was written")
    data: dict[str, Any] = json.loads(line[_ENTRY])
    if data["format"] != FORMAT:
        raise ValueError(f"the line has format {data['format']}, this version of art_trainer reads {FORMAT}")
    return Entry(
        task=_decode_task(data["task"]),
        member=data["member"],
        round=data["round"],
        episode=decode_episode(data) if data["played"] else None,
        timing=_decode_timing(data["timing"]),
        client=data["client"],
        reason=data["reason"],
    )


def _checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def _decode_task(data: Mapping[str, Any]) -> GroupTask:
    return GroupTask(data["seed"], data["size"], tuple(data["rng_seed"]), data["options"], data["batch"])


def _encode_timing(timing: EpisodeTiming | None) -> list[Any] | None:
    if timing is None:
        return None
    return [timing.started, [[turn.reply_seconds, turn.action_seconds] for turn in timing.turns]]


def _decode_timing(data: list[Any] | None) -> EpisodeTiming | None:
    return None if data is None else EpisodeTiming(data[0], tuple(TurnTiming(*turn) for turn in data[1]))
