import io
from functools import partial

import gymnasium as gym
import pytest
from rich.console import Console

from art_trainer.display import visible
from art_trainer.episodes import Ending
from art_trainer.play import Person, PlayerLeft, play_episode
from art_trainer.scripted_policy import ScriptedPolicy
from tests.art_trainer.toy_envs import Echo

make_echo = partial(gym.make, "toy/Echo-v0")
GREEN = {"task": "test-1"}


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100)


def typing(*lines):
    waiting = list(lines)

    def read():
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return Person(read)


def test_a_person_plays_and_sees_observation_reward_and_score(console):
    episode = play_episode(typing("blue", "green"), make_echo, console, options=GREEN)
    told = console.file.getvalue()
    assert (episode.reward, episode.success, len(episode.turns)) == (pytest.approx(0.8), True, 2)
    assert "Say green!" in told
    assert "Wrong." in told
    assert "reward +0.900 (word +1, speed -0.1)" in told
    assert told.rstrip().endswith("Solved: reward 0.800 in 2 turns (word +1, speed -0.2)")
    assert "› green" not in told  # they have just typed it


def test_a_wrong_word_is_answered_and_not_the_end(console):
    episode = play_episode(typing("greem", "green"), make_echo, console, options=GREEN)
    assert episode.invalid_actions == 1
    assert "green" in episode.turns[0].observation


def test_watching_shows_the_replies(console):
    play_episode(ScriptedPolicy("scripted"), make_echo, console, options=GREEN)
    assert "› green" in console.file.getvalue()


def test_no_more_input_leaves_the_game(console):
    with pytest.raises(PlayerLeft):
        play_episode(typing("blue"), make_echo, console, options=GREEN)
    assert "Wrong." in console.file.getvalue()


def test_a_fence_takes_lines_until_it_is_closed():
    read = typing("```python", "print(1)", "", "```", "next")
    assert read._reply() == "```python\nprint(1)\n\n```"
    assert read._reply() == "next"


def test_a_fault_is_told_in_words(console):
    episode = play_episode(ScriptedPolicy("scripted"), lambda: Echo(fragile=True), console, options=GREEN)
    assert episode.ending is Ending.ENV_ERROR
    assert "RuntimeError: out of paint" in console.file.getvalue()


def test_what_a_model_says_cannot_drive_the_terminal(console):
    class Rude(Echo):
        def begin(self, task):
            return "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe \ud800 [bold]plain[/bold]"

    with pytest.raises(PlayerLeft):
        play_episode(typing(), Rude, console)
    told = console.file.getvalue()
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert "␛[2J" in told
    assert "[bold]plain[/bold]" in told


def test_visible_keeps_lines_tabs_and_every_script():
    assert visible("a\tb\r\nc 日本 é 🙂") == "a\tb\nc 日本 é 🙂"
    assert visible("\x00\x7f\x9b") == "␀␡�"
