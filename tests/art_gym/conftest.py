"""The ``art-gym`` command, run in this process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from art_gym import cli


class Result(NamedTuple):
    """What a command ended with and printed."""

    code: int | str | None
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run ``art-gym`` with these arguments."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["art-gym", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "140")
        monkeypatch.setenv("NO_COLOR", "1")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return Result(stopped.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def rejected(command: Callable[..., Result]) -> Callable[..., str]:
    """Run ``art-gym`` with wrong arguments; the one line that it prints on exit code 2."""

    def run(*arguments: object) -> str:
        result = command(*arguments)
        assert result.code == 2
        (line,) = [line for line in result.err.splitlines() if line.startswith("art-gym: ")]
        return line

    return run
