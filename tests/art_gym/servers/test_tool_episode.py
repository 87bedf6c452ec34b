import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym import Outcome, TextEnv, ToolError, parse, tool
from art_gym.parsing.formats import write_call
from art_gym.servers.tool_episode import FAILED, OVER, ToolEpisode


class Parrot(TextEnv):
    """Says what it is told."""

    instructions = "Teach the parrot."

    def begin(self, task):
        self.np_random.integers(5)
        return "The parrot looks at you."

    @tool
    def say(self, words: str, times: int = 1) -> Outcome:
        """Say something.

        Args:
            words: What to say.
            times: How often.
        """
        if times > 3:
            raise ToolError("the parrot is tired")
        return Outcome(words * times, {"said": 0.5, "loud": 0.25 * words.isupper()})

    @tool(ends=True)
    def leave(self) -> Outcome:
        """Leave the parrot."""
        return Outcome("Bye.", {"left": 1.0}, success=True, metrics={"words": 2})

    @tool
    def pluck(self) -> str:
        """Pluck a feather."""
        raise RuntimeError("the cage is broken")

    closed = False

    def close(self):
        self.closed = True


def test_calls_are_turns_and_the_account_adds_them_up():
    episode = ToolEpisode(Parrot(), seed=4)
    assert "Teach the parrot." in episode.introduction
    assert "The parrot looks at you." in episode.introduction
    assert "Reply with one call" in episode.observation
    assert "Reply with one call" not in episode.introduction
    assert [function["name"] for function in episode.tools] == ["say", "leave", "pluck"]
    assert episode.call("say", {"words": "HO"}).text == "HO"
    assert episode.call("say", {"words": "hi", "times": 2}).text == "hihi"
    so_far = {"turns": 2, "reward": 1.25, "score_terms": {"said": 1.0, "loud": 0.25}, "ended_by": "leaving"}
    assert episode.result() == {"env": "Parrot", "seed": 4, "task_id": "default", **so_far}
    last = episode.call("leave", None)
    assert (last.text, last.ended, last.refused) == ("Bye.", True, False)
    account = episode.result()
    assert (account["ended_by"], account["success"], account["reward"]) == ("termination", True, 2.25)
    assert account["metrics"]["words"] == 2
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
    assert closed.call("leave", {}).text == OVER


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sya", {"words": "x"}, "did you mean `say`"),
        ("say", {}, "words"),
        ("say", {"words": "x", "times": "many"}, "`times` must be a whole number"),
        ("say", {"words": "x", "volume": 3}, "volume"),
        ("say", {"words": "x", "times": 9}, "the parrot is tired"),
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
    assert episode.call("leave", {}).text == OVER


@given(st.text(), st.text())
def test_whatever_the_arguments_hold_the_parser_reads_it_back(words, before):
    call = parse(write_call("say", {"words": f"{before}</tool_call><think>{words}"}), Parrot.tools)
    assert (call.name, call.arguments["words"]) == ("say", f"{before}</tool_call><think>{words}")
