"""What the scenarios in a Ray cluster have in common; nothing of it needs a model."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from art_trainer.episodes import Group
from art_trainer.ray_backend.actor import Player
from art_trainer.remote.messages import Lease
from tests.art_trainer.ray_backend.hands import Company
from tests.art_trainer.ray_backend.players import MadeUpPlayer


@dataclasses.dataclass(frozen=True)
class Strikes:
    """Sends its own process a signal at some seeds, once each, and notes which process it was."""

    folder: Path
    signals: dict[int, signal.Signals]

    def __call__(self, lease: Lease) -> None:
        number = self.signals.get(lease.seed)
        if number is None:
            return
        try:
            with (self.folder / str(lease.seed)).open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return
        os.kill(os.getpid(), number)

    def struck(self, seed: int) -> int:
        return int((self.folder / str(seed)).read_text())


@dataclasses.dataclass(frozen=True)
class MakeUp:
    """Makes players without a model, in an actor."""

    seconds: float
    before: Callable[[Lease], None] = lambda lease: None

    def __call__(self) -> Player:
        return MadeUpPlayer(self.seconds, before=self.before)


def counted(made: Company, groups: list[Group]) -> dict[str, Any]:
    return {
        "groups": [[episode.observation for episode in group.episodes] for group in groups],
        "whole": sum(group.whole for group in groups),
        "results": made.ledger.status().results,
        "losses": made.crew.losses,
        "said": made.said,
    }


def open_to_all() -> list[str]:
    """The sockets of all processes with this one's home that listen to other machines too."""
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    listening = {f"socket:[{row[9]}]": row[1] for row in rows if row[3] == "0A"}
    home = f"HOME={os.environ['HOME']}".encode()
    ours = set()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and home in (process / "environ").read_bytes().split(b"\0"):
                ours |= {os.readlink(file) for file in (process / "fd").iterdir()}
        except OSError:
            continue  # it has ended meanwhile
    addresses = [listening[file] for file in ours & listening.keys()]
    assert addresses  # Ray listens somewhere
    loopback = ("0100007F:", "00000000000000000000000001000000:", "0000000000000000FFFF00000100007F:")
    return sorted(address for address in addresses if not address.startswith(loopback))


def seconds_until(true: Callable[[], bool], limit: float = 60.0) -> float | None:
    began = time.monotonic()
    while time.monotonic() - began < limit:
        if true():
            return time.monotonic() - began
        time.sleep(0.1)
    return None


def tell(scenario: Callable[[Path], dict[str, Any]]) -> None:
    """Write what comes of a scenario, and its CPU time, into the file that the command line names."""
    out = Path(sys.argv[1])
    found = scenario(out.parent)
    out.write_text(json.dumps(found))
