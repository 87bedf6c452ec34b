import numpy as np
import pytest

from art_trainer.analysis.error_patterns import ErrorCollector, normalized
from art_trainer.analysis.run_records import repeated_calls, repeated_words
from art_trainer.types import Ending, Episode, Turn
from tests.art_trainer.analysis.drifting_runs import Play, episode_of


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("no tool `serach`; did you mean `search`?", "no tool <text>; did you mean <text>?"),
        ("line 3, column 17: 'x = 1'", "line <n>, column <n>: <text>"),
        ("don't guess, it isn't there", "don't guess, it isn't there"),
        ("no file /home/me/data.txt here", "no file <path> here"),
        ("object at 0x7f3a91 and 3fa85f64-5717-4562-b3fc-2c963f66afa6", "object at <id> and <id>"),
        ("took 1,234.5 s\n  after -3 tries", "took <n> s after <n> tries"),
    ],
)
def test_messages_that_differ_in_names_and_numbers_are_one(message, pattern):
    assert normalized(message) == pattern


def test_a_long_message_is_cut_and_a_hostile_one_is_quick():
    assert len(normalized("word " * 100_000)) <= 240
    assert normalized("'" * 50_000 + "\\" * 50_000)


def failing(message, task=0):
    return episode_of(Play(False, ["hm", "ok"], {}, invalid=1, error=("unknown", message)), task, 7)


def test_errors_are_counted_with_the_first_as_example():
    errors = ErrorCollector()
    for step, name in enumerate(["a", "b", "c"], start=1):
        errors.add(step, failing(f"no tool `{name}`", task=step))
    errors.add(4, failing("something else"))
    first, second = errors.patterns(5)
    assert (first.kind, first.message, first.count, first.share) == ("unknown", "no tool <text>", 3, 0.75)
    assert (first.first_step, first.last_step) == (1, 3)
    assert first.where == "step 1, task train-1, seed 7, turn 1"
    assert (first.example_reply, first.example_message) == ("hm", "no tool `a`")
    assert second.count == 1
    assert (errors.errors, errors.replies) == (4, 8)


def test_a_fault_is_a_pattern_too():
    errors = ErrorCollector()
    errors.add(2, Episode("e", "t", 0, "", (), (), Ending.ENV_ERROR, error="KeyError: 'x'"))
    (found,) = errors.patterns(5)
    assert (found.kind, found.message) == ("env_error", "KeyError: <text>")
    assert found.where == "step 2, task t, seed 0"


def test_endless_kinds_of_errors_are_kept_within_bounds_and_the_frequent_ones_survive():
    errors = ErrorCollector()
    rng = np.random.default_rng(0)
    for k in range(3_000):
        errors.add(k, failing("".join(chr(97 + c) for c in rng.integers(26, size=12))))
        errors.add(k, failing("always"))
    assert len(errors._seen) <= 800
    first = errors.patterns(1)[0]
    assert (first.message, first.count, first.share) == ("always", 3_000, 0.5)


def test_repeated_calls_are_those_done_before():
    def turns(*calls):
        return [Turn(reply, "", 0.0, call=call and {"name": call}) for reply, call in calls]

    assert repeated_calls(turns(("1", "a"), ("2", "b"), ("3", "a"), ("4", "a"))) == 0.5
    assert repeated_calls(turns(("yes", None), ("yes", None))) == 0.5
    assert repeated_calls(turns(("yes", None))) == repeated_calls([]) == 0.0


def test_repeated_words_are_threes_seen_before_in_the_reply():
    assert repeated_words(["a b c d e f g h"]) == 0.0
    assert repeated_words(["so so so so so so"]) == pytest.approx(0.75)
    assert repeated_words(["a b c", "x y z x y z x y z"]) == pytest.approx(4 / 7)
    assert repeated_words([]) == 0.0
