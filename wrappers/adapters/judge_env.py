"""``art/Judge-v0``: the work of a judge as an environment, so that a model can be trained to do it.

An episode is one question of :class:`~art_gym.wrappers.judging.LLMJudge` about a group of attempts at a task
of another environment, and its answer. That environment's scripted players play the group, and its own reward
is the truth. A trained judge then scores attempts at tasks whose reward nobody has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from art_gym.baselines import Act, Baseline, noisy, play_on, players
from art_gym.lookup import find_env
from art_gym.tasks import Task
from art_gym.wrappers.adapters.common import FreeTextEnv
from art_gym.wrappers.judging import RULER_RUBRIC, Attempt, AttemptRecorder, RubricJudge, Score
from art_gym.wrappers.judging.agreement import judged_tau, top_agreement
from art_gym.wrappers.judging.llm_judge import fit
from art_gym.wrappers.judging.prompt import (
    AnswerFormatError,
    Prompt,
    build_prompt,
    digest_group,
    read_answer,
    rules_text,
)
from art_gym.wrappers.text_adapter import TextAdapter

_MOST_DRAWS = 10
"""Groups that are played of a task until the attempts of one have different rewards."""
_DIGITS = 9
"""Sums of the same rewards in another order differ by rounding."""


def write_answer(scores: Mapping[str, Score]) -> str:
    """Write a judge's answer in the form that its question asks for, by label."""
    entries = [
        {"id": label, "explanation": score.explanation, "score": round(score.value, 2)}
        for label, score in scores.items()
    ]
    return json.dumps({"scores": entries}, ensure_ascii=False)


def _by_reward(env: JudgeEnv, rng: np.random.Generator) -> Act:
    """Knows the rewards: the worst attempt of the group gets 0 and the best 1."""
    question = env.question
    low, high = min(question.rewards), max(question.rewards)
    values = [(reward - low) / (high - low or 1) for reward in question.rewards]
    words = {True: "It succeeded.", False: "It failed.", None: ""}
    attempts = zip(values, question.attempts, strict=True)
    return _answering(env, [Score(value, words[attempt.success]) for value, attempt in attempts])


def _by_rubric(env: JudgeEnv, rng: np.random.Generator) -> Act:
    """Scores without a model and without the facts about the right answer."""
    attempts = [replace(attempt, facts={}) for attempt in env.question.attempts]
    found = RubricJudge()(attempts)
    return _answering(env, [replace(found[attempt.id], explanation="") for attempt in attempts])


def _at_random(env: JudgeEnv, rng: np.random.Generator) -> Act:
    return _answering(env, [Score(float(rng.random())) for _ in env.question.attempts])


def _answering(env: JudgeEnv, scores: Sequence[Score]) -> Act:
    """Answers in the order in which the attempts are shown."""
    prompt = env.question.prompt
    text = write_answer({prompt.labels[place]: scores[place] for place in prompt.order})
    return lambda observation: text


class Question(FreeTextEnv):
    """One question about a group, and what an answer to it earns.

    Attributes:
        attempts: The attempts, in the order of the prompt's labels; those that read the same are one.
        rewards: What each earned.
    """

    prompt: Prompt
    attempts: tuple[Attempt, ...] = ()
    rewards: tuple[float, ...] = ()

    def set(self, group: Sequence[Attempt], max_context_tokens: int) -> None:
        """Ask about another group; the attempts' ids are their places."""
        digest = digest_group(group)
        self.prompt = build_prompt(*fit(digest, max_context_tokens), RULER_RUBRIC, seed=0)
        self.attempts = tuple(group[int(ids[0])] for ids in digest.ids)
        self.rewards = tuple(round(attempt.reward, _DIGITS) for attempt in self.attempts)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the material."""
        super().reset(seed=seed)
        return self.prompt.messages[1]["content"], {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compare the scores with the rewards; an AnswerFormatError for an answer that cannot be read."""
        scores = read_answer(action, self.prompt.labels)
        values = [scores[label].value for label in self.prompt.labels]
        tau = judged_tau(values, self.rewards) or 0.0
        success = top_agreement(values, self.rewards) == 1
        return f"Kendall's tau with the rewards is {tau:.2f}.", tau, True, False, {"success": success}


class JudgeEnv(TextAdapter):
    """Order attempts at a task, as the task's own reward orders them.

    ## Description
    Scripted players of another environment, half of them with some random replies, play a group of attempts
    at one task. The agent is asked about them as an ``LLMJudge`` asks a model, and scores each attempt.

    ## Action Space
    Text: the judge's whole answer, a JSON object with a score from 0 to 1 for each attempt's id.

    ## Observation Space
    Text: the judge's rules, the task and the attempts. Attempts that read the same are one.

    ## Starting State
    The seed chooses the task and what the players do. A group whose rewards are all equal is played again, up
    to ten times.

    ## Rewards
    Kendall's tau-b of the scores with the environment's rewards: 1 for the same order, 0 for equal scores, -1
    for the reverse. An answer that cannot be read costs 1. ``success``: the highest score went to best
    attempts alone.

    ## Episode End
    Terminated by an answer. After one that cannot be read the agent is told why, and tries again, until
    ``max_turns`` replies.

    ## Information
    The standard keys.

    ## Arguments
    * ``env``: the environment whose attempts are judged, an id or a file. Tasks and splits are its own.
    * ``size``: attempts in a group, at least 2.
    * ``noise``: the largest share of random replies.
    * ``max_context_tokens``: most tokens of material, by ``LLMJudge``'s estimate; longer attempts are cut.
    * ``env_args``: arguments of the environment.
    * ``split``, ``max_turns``, ``render_mode``: as in every ``TextEnv``.

    ## References
    OpenPipe, "RULER: Relative Universal LLM-Elicited Rewards" (2025), for judging attempts side by side.
    M. G. Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945), pp. 239-251.

    ## Version History
    * v0: initial version.
    """

    baselines: ClassVar[Mapping[str, Baseline]] = {"random": _at_random, "rubric": _by_rubric}
    teachers: ClassVar[Mapping[str, Baseline]] = {"reward": _by_reward}
    shared: ClassVar[tuple[str, ...]] = (*TextAdapter.shared, "judged")

    def __init__(
        self,
        env: str = "art/Email-v0",
        *,
        size: int = 4,
        noise: float = 0.5,
        max_context_tokens: int = 16_000,
        env_args: Mapping[str, Any] | None = None,
        split: str = "train",
        max_turns: int = 2,
        render_mode: str | None = None,
    ) -> None:
        if size < 2:
            raise ValueError(f"size is at least 2, since attempts are compared, got {size}")
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is a share from 0 to 1, got {noise}")
        if max_context_tokens < 1_000:
            raise ValueError(f"max_context_tokens is at least 1,000, got {max_context_tokens}")
        self.judged = gym.make(find_env(env).id, **dict(env_args or {}))
        if not players(self.judged):
            raise ValueError(f"{env} has no scripted players: nobody plays the attempts")
        self.size, self.noise, self.max_context_tokens = size, noise, max_context_tokens
        self.question = Question()
        known = getattr(self.judged.unwrapped, "tasks", ())
        super().__init__(
            self.question,
            instructions=rules_text(RULER_RUBRIC),
            tasks=[Task(task.id, "", task.split) for task in known] or None,
            split=split,
            max_turns=max_turns,
            invalid_reward=-1.0,
            refusals=(AnswerFormatError,),
            render_mode=render_mode,
        )

    def restart(self, task: Task, seed: int) -> tuple[str, dict[str, Any]]:
        """Play a group of attempts at a task, and ask about it."""
        rng = np.random.default_rng(seed)
        for _ in range(_MOST_DRAWS):
            self.question.set(self._play_group(task, seed, rng), self.max_context_tokens)
            if len(set(self.question.rewards)) > 1:
                break
        return self.question.reset(seed=seed)

    def close(self) -> None:
        """Close the environment that is played."""
        self.judged.close()

    def _play_group(self, task: Task, seed: int, rng: np.random.Generator) -> list[Attempt]:
        has_tasks = hasattr(self.judged.unwrapped, "tasks")
        recorder, group = AttemptRecorder(), []
        for number in range(self.size):
            observation, info = self.judged.reset(seed=seed, options={"task": task.id} if has_tasks else None)
            recorder.begin(observation, info)
            act = self._player(np.random.default_rng(rng.integers(2**63)))
            for step in play_on(self.judged, act, observation):
                recorder.add(*step)
            group.append(recorder.attempt(str(number)))
        return group

    def _player(self, rng: np.random.Generator) -> Act:
        """One of the players, with noise in half of the cases."""
        known, bare = players(self.judged), self.judged.unwrapped
        act = list(known.values())[int(rng.integers(len(known)))](bare, rng)
        if rng.random() < 0.5 or "random" not in known:
            return act
        return noisy(act, known["random"](bare, rng), rng.uniform(0, self.noise), rng)
