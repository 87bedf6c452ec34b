"""Fixtures of the command-line tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from art_trainer.cli.main import app, main
from tests.wrappers.judging.judge_server import Answer, JudgeServer


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run ``art-trainer`` in an empty folder; an error is raised, an exit code is in the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")

    def run(*arguments: object, stdin: str = "") -> Result:
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(app, words, input=stdin, catch_exceptions=False)

    return run


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], JudgeServer]]:
    """Serve a model that answers request number n with ``answer(n, request)``."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ExitStack() as servers:
        yield lambda answer: servers.enter_context(closing(JudgeServer(answer)))


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run ``art-trainer`` in an empty folder; return its error, which is one line with exit code 2."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        error = capsys.readouterr().err
        assert (ended.value.code, error.count("\n")) == (2, 1), error
        return error

    return run
