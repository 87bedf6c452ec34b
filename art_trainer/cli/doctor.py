"""``art-trainer doctor``: what this machine can do, and what to install for what is missing."""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import metadata

from rich.console import Console
from rich.text import Text

from art_trainer.cli.options import command
from art_trainer.formatting import in_bytes

_DISTRIBUTION = "art-gym"
_NOT_FOR_USERS = ("test", "dev", "docs")
_REQUIREMENT = re.compile(r"([\w.-]+).*?(?:extra\s*==\s*['\"]([\w-]+)['\"])")

Row = tuple[str, str, str]
"""What it is, what there is, and what to do about it."""


@command("doctor", "`art-trainer doctor`, before a first run or with a report of a problem.")
def doctor() -> None:
    """Show what this machine can do, cores, memory, GPUs and extras, and what to install for what is missing.

    `art-gym sandbox check` does the same for the sandbox of `art/Coding-v0`.
    """
    from art_trainer.cli.console import make_table

    table = make_table(None, ["part", "here", "to do"], [])
    for row in (*_machine(), *_extras()):
        table.add_row(*map(Text, row))
    Console().print(table)


def _machine() -> Iterator[Row]:
    import torch

    from art_trainer.models.cpu import multiplies_bfloat16, usable_cores
    from art_trainer.models.memory import free_memory

    yield "art-gym", metadata.version(_DISTRIBUTION), ""
    yield "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}", ""
    yield "PyTorch", torch.__version__, ""
    yield "CPU cores", str(usable_cores()), ""
    yield "free memory", in_bytes(free_memory(torch.device("cpu"))), ""
    fast = multiplies_bfloat16()
    yield "bfloat16 on the CPU", "fast" if fast else "slow: float32 is used", ""
    if not torch.cuda.is_available():
        build = torch.version.cuda or "none"
        todo = "" if torch.version.cuda else "for an NVIDIA GPU install PyTorch's CUDA build"
        yield "NVIDIA GPU", f"none that PyTorch sees (its CUDA: {build})", todo
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        half = "" if torch.cuda.is_bf16_supported() else "too old for bfloat16: --dtype float32"
        name, free = torch.cuda.get_device_name(index), in_bytes(free_memory(device))
        yield f"GPU {index}", f"{name}, {free} free", half


def _extras() -> Iterator[Row]:
    """Each extra of the package, with what is missing for it."""
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for requirement in metadata.requires(_DISTRIBUTION) or []:
        if (found := _REQUIREMENT.match(requirement)) and found[2] not in _NOT_FOR_USERS:
            wanted[found[2]].append(found[1])
    for extra, names in wanted.items():
        missing = [name for name in names if not _installed(name)]
        todo = f"pip install {' '.join(missing)}" if missing else ""
        yield f"extra: {extra}", f"missing: {', '.join(missing)}" if missing else "installed", todo


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
