import io
from collections.abc import Callable

import gymnasium as gym
import pytest
from rich.console import Console

from art_gym import Task
from art_gym.cli.play import PrintEpisode, play_by_hand, read_reply
from tests.art_gym.toys import CounterEnv

FILE = """
from art_gym import Outcome, Task, TextEnv, tool

class WordEnv(TextEnv):
    def __init__(self, **options):
        tasks = [Task(f"{split}-0", "Say blue!", split) for split in ("train", "test")]
        super().__init__(tasks, max_turns=2, **options)

    @tool
    def say(self, word: str) -> Outcome | str:
        '''Say a word.

        Args:
            word: The word.
        '''
        if word != "blue":
            return "Wrong."
        return Outcome("Right.", {"word": 1.0}, ends=True, success=True)
"""


def typing(*lines: str) -> Callable[[], str]:
    waiting = list(lines)

    def read() -> str:
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return read


@pytest.mark.parametrize(
    ("arguments", "typed", "code", "shown"),
    [
        ((), 'say("red")\nsay("blue")\n', 0, ('› say("red")', "Wrong.", "Solved: reward 1.000 in 2 turns")),
        ((), 'say("red")\n', 0, ("You left before the end; no score.",)),
        (("--task", "test-9"), "", 2, ("test-9",)),
        (("--split", "tset"), "", 2, ("did you mean `test`?",)),
        (("--env-args", "turns=2"), "", 2, ("turns",)),
    ],
)
def test_a_file_is_played_by_hand(command, tmp_path, monkeypatch, arguments, typed, code, shown):
    (tmp_path / "word.py").write_text(FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    found, out, err = command("play", "word.py", *arguments)
    assert found == code
    for text in shown:
        assert text in out + err


def test_a_fence_takes_lines_until_it_is_closed() -> None:
    read = typing("```python", "print(1)", "", "```", "next")
    assert read_reply(read) == "```python\nprint(1)\n\n```"
    assert read_reply(read) == "next"


def test_what_an_environment_says_cannot_drive_the_terminal() -> None:
    class Rude(CounterEnv):
        def begin(self, task: Task) -> str:
            return "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe \ud800 [bold]plain[/bold]"

    console = Console(file=io.StringIO(), width=100)
    env: gym.Env[str, str] = PrintEpisode(Rude(), console, show_replies=False)
    env.reset(seed=0)
    with pytest.raises(EOFError):
        play_by_hand(env, typing())
    shown = console.file.getvalue()
    assert not {"\x1b", "\u202e"} & set(shown)
    assert "␛[2J" in shown
    assert "[bold]plain[/bold]" in shown
