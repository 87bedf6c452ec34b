"""RULER as a reward function of TRL's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from art_gym.wrappers.judging import Attempt, JudgeFailedError, JudgingError, Rubric, Score
from art_trainer.trl import ruler_reward, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, SAY_ID, make_factory

pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = QUIET


class CountingJudge:
    """Scores by the length of what was said, answers in reverse, and fails on a task."""

    def __init__(self, fails_on: str = "nothing") -> None:
        self.groups: list[list[Attempt]] = []
        self.fails_on = fails_on

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        self.groups.append(list(group))
        if self.fails_on in group[0].task:
            raise JudgeFailedError("malformed", "no words for it")
        said = {attempt.id: "".join(step.reply for step in attempt.steps) for attempt in group}
        return {id_: Score(min(len(text), 100) / 100, text) for id_, text in reversed(said.items())}


def _chat(*texts: str, role: str = "assistant") -> list[list[dict[str, str]]]:
    return [[{"role": role, "content": text}] for text in texts]


_ask = partial(_chat, role="user")


def test_groups_are_found_by_prompt_and_seed_and_judged_once_each() -> None:
    judge = CountingJudge()
    prompts, completions = _ask("a", "b", "a", "a", "b"), _chat("1", "22", "333", "4444", "55555")
    scores = ruler_reward(judge)(prompts=prompts, completions=completions, seed=[1, 1, 1, 2, 1])
    assert scores == [0.01, 0.02, 0.03, 0.04, 0.05]
    said = sorted(tuple(attempt.steps[0].reply for attempt in group) for group in judge.groups)
    assert said == [("1", "333"), ("22", "55555"), ("4444",)]
    assert [attempt.id for attempt in max(judge.groups, key=len)] == ["attempt_0", "attempt_1"]


def test_a_group_that_the_judge_fails_on_has_no_reward_and_the_others_have() -> None:
    reward = ruler_reward(CountingJudge(fails_on="b"))
    logged: dict[str, Any] = {}
    loggers = {"log_metric": logged.__setitem__, "log_extra": logged.__setitem__}
    assert reward(prompts=_ask("a", "b"), completions=_chat("1", "2"), **loggers) == [0.01, None]
    assert logged == {"ruler/failed_groups": 0.5, "ruler_explanation": ["1", None]}
    assert (reward.judged, reward.failures["malformed"]) == (1, 1)
    stop = ruler_reward(CountingJudge(fails_on="b"), on_failure="raise")
    with pytest.raises(JudgeFailedError, match="no words for it"):
        stop(prompts=_ask("b"), completions=_chat("2"))
    with pytest.raises(TypeError, match="None cannot be called"):
        ruler_reward(None)  # type: ignore[arg-type]
    with pytest.raises(JudgingError, match="no on_failure `zero`; known: `nan`, `raise`"):
        ruler_reward(CountingJudge(), on_failure="zero")  # type: ignore[arg-type]


def test_messages_with_calls_and_plain_text_can_be_judged_too() -> None:
    judge = CountingJudge()
    call = {"type": "function", "function": {"name": "say", "arguments": {"word": "red"}}}
    talk = [
        {"role": "assistant", "content": "hm", "tool_calls": [call]},
        {"role": "tool", "name": "say", "content": "wrong"},
        {"role": "assistant", "content": "I give up"},
    ]
    ruler_reward(judge)(prompts=_ask("a"), completions=[talk])
    first, last = judge.groups[0][0].steps
    assert first.reply == 'hm\n{"name": "say", "arguments": {"word": "red"}}'
    assert (first.observation, last.reply) == ("wrong", "I give up")
    assert ruler_reward(judge)(prompts=["a", "a"], completions=["x", "yy"]) == [0.01, 0.02]


def test_an_environments_episode_is_judged_with_what_was_said_last_and_a_failed_one_is_not() -> None:
    rows = task_dataset(SAY_ID, size=1, env_args={"fault": "green"})
    make, judge = make_factory(SAY_ID, env_args={"fault": "green"}), CountingJudge()
    environments: list[Any] = [make() for _ in range(3)]
    for environment, word in zip(environments, ("red", "blue", "green"), strict=True):
        environment.reset(**rows[0])
        environment.say(word=word)
    prompts = [rows[0]["prompt"]] * 3
    completions = _chat("ignored: it is over", "that was all I know", "")
    scores = ruler_reward(judge)(prompts=prompts, completions=completions, environments=environments)
    over, left = judge.groups[0]
    assert (over.success, over.ending, len(over.steps)) == (True, "terminated", 1)
    assert (left.ending, left.steps[-1].reply) == ("unfinished", "that was all I know")
    assert left.tools[0]["function"]["name"] == "say"
    assert scores[2] is None
    assert None not in scores[:2]
