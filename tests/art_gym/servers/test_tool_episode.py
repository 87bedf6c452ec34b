import json

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym import Outcome, parse, tool
from art_gym.parsing.formats import write_call
from art_gym.servers.tool_episode import FAILED, OVER, ToolEpisode
from tests.art_gym.toys import CounterEnv


class Parrot(CounterEnv):
    closed = False

    @tool
    def say(self, words: str) -> Outcome:
        """Say something.

        Args:
            words: What to say.
        """
        return Outcome(words, {"said": 0.5, "loud": 0.25 * words.isupper()})

    @tool
    def pluck(self) -> str:
        """Pluck a feather."""
        raise RuntimeError("the cage is broken")

    def close(self):
        self.closed = True


def test_calls_are_turns_and_the_account_adds_them_up():
    episode = ToolEpisode(Parrot(), seed=4, options={"task": "t2"})
    assert "Reach the target." in episode.introduction
    assert "Reach 2. The counter is 0." in episode.introduction
    assert "Reply with one call" in episode.observation
    assert "Reply with one call" not in episode.introduction
    assert [function["name"] for function in episode.tools] == ["add", "peek", "stop", "say", "pluck"]
    assert [episode.call("say", {"words": words}).text for words in ("HO", "hi")] == ["HO", "hi"]
    so_far = {"turns": 2, "reward": 1.25, "score_terms": {"said": 1.0, "loud": 0.25}, "ended_by": "leaving"}
    assert episode.result() == {"env": "Parrot", "seed": 4, "task_id": "t2", **so_far}
    last = episode.call("stop", None)
    assert (last.text, last.ended, last.refused) == ("Done.", True, False)
    account = episode.result()
    assert (account["ended_by"], account["success"], account["reward"]) == ("termination", False, 1.25)
    assert account["metrics"]["count"] == 0
    json.dumps(account)


def test_after_the_end_a_call_does_nothing():
    env = Parrot(max_turns=1)
    episode = ToolEpisode(env)
    assert episode.call("say", {"words": "hi"}).ended
    before = episode.result()
    assert before["ended_by"] == "truncation"
    answer = episode.call("say", {"words": "more"})
    assert (answer.text, answer.refused, answer.ended) == (OVER, True, False)
    assert episode.result() == before
    closed = ToolEpisode(env)
    closed.close()
    assert env.closed
    assert closed.call("stop", {}).text == OVER


def test_who_leaves_is_paid_as_if_the_turns_had_run_out():
    episode = ToolEpisode(gym.make("art/Email-v0"), seed=1)
    assert episode.result()["reward"] == 0
    account = episode.close()
    assert (account["reward"], account["score_terms"], account["ended_by"]) == (
        -0.5,
        {"no_answer": -0.5},
        "leaving",
    )
    assert (account["success"], account["metrics"]["searches"]) == (False, 0)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sya", {"words": "x"}, "did you mean `say`"),
        ("say", {}, "words"),
        ("add", {"amount": "many"}, "`amount` must be a whole number"),
        ("say", {"words": "x", "volume": 3}, "volume"),
        ("add", {"amount": 10}, "amount must be from 1 to 9"),
        ("", {}, ""),
    ],
)
def test_a_wrong_call_is_answered_as_the_environment_answers_it(name, arguments, words):
    episode, env = ToolEpisode(Parrot(), seed=1), Parrot()
    env.reset(seed=1)
    answer = episode.call(name, arguments)
    assert words in answer.text
    assert answer.refused
    said = json.dumps({"name": name, "arguments": arguments})
    observation, reward, *_ = env.step(f"<tool_call>{said}</tool_call>")
    assert answer.text == observation
    assert episode.result()["reward"] == reward < 0


def test_a_fault_of_the_environment_ends_the_episode_and_stands_in_the_account(caplog):
    episode = ToolEpisode(Parrot())
    answer = episode.call("pluck", {})
    assert (answer.text, answer.refused, answer.ended) == (FAILED, True, True)
    assert episode.result()["fault"] == "RuntimeError: the cage is broken"
    assert "the cage is broken" in caplog.text
    assert episode.call("stop", {}).text == OVER


def test_an_environment_that_cannot_be_closed_keeps_its_account(caplog, monkeypatch):
    episode = ToolEpisode(Parrot())
    monkeypatch.setattr(Parrot, "close", lambda self: 1 / 0)
    monkeypatch.setattr(Parrot, "on_truncation", lambda self: [][0])
    assert episode.close()["fault"] == "IndexError: list index out of range"
    assert "ZeroDivisionError" in caplog.text


@given(st.text(), st.text())
def test_whatever_the_arguments_hold_the_parser_reads_it_back(words, before):
    call = parse(write_call("say", {"words": f"{before}</tool_call><think>{words}"}), Parrot.tools)
    assert (call.name, call.arguments["words"]) == ("say", f"{before}</tool_call><think>{words}")
