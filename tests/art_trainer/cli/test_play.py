import io

import pytest
from rich.console import Console

from art_trainer.cli.play import play_by_hand, read_reply, watch
from art_trainer.formatting import visible
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.types import EpisodeSpec
from tests.art_trainer.toy_envs import Echo


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100)


def typing(*lines):
    waiting = list(lines)

    def read():
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return read


def test_a_fence_takes_lines_until_it_is_closed():
    read = typing("```python", "print(1)", "", "```", "next")
    assert read_reply(read) == "```python\nprint(1)\n\n```"
    assert read_reply(read) == "next"


def test_a_fault_is_shown(console):
    spec = EpisodeSpec(0, {"task": "test-1"})
    watch(ScriptedPolicy("scripted"), lambda: Echo(fragile=True), spec, console)
    assert "(env_error): RuntimeError: out of paint" in console.file.getvalue()


def test_what_a_model_says_cannot_drive_the_terminal(console):
    class Rude(Echo):
        def begin(self, task):
            return "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe \ud800 [bold]plain[/bold]"

    with pytest.raises(EOFError):
        play_by_hand(Rude(), EpisodeSpec(0), console, typing())
    shown = console.file.getvalue()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "␛[2J" in shown
    assert "[bold]plain[/bold]" in shown


def test_visible_keeps_lines_tabs_and_every_script():
    assert visible("a\tb\r\nc 日本 é 🙂") == "a\tb\nc 日本 é 🙂"
    assert visible("\x00\x7f\x9b") == "␀␡�"
