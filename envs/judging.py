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

from art_gym.baselines import Act, Baseline, noisy, players
from art_gym.lookup import find_env
from art_gym.spaces import UnicodeText
from art_gym.wrappers.judging import RULER_RUBRIC, Attempt, AttemptRecorder, RubricJudge, Score
from art_gym.wrappers.judging.agreement import judged_tau, top_agreement
from art_gym.wrappers.judging.llm_judge import plan_batches
from art_gym.wrappers.judging.prompt import AnswerFormatError, Prompt, build_prompt, digest_group, read_answer

_MOST_DRAWS = 50
"""Groups that are played until one has attempts of different rewards."""
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
    low, high = min(env.rewards), max(env.rewards)
    values = [(reward - low) / (high - low) for reward in env.rewards]
    words = {True: "It succeeded.", False: "It failed.", None: ""}
    return _answering(env, [Score(v, words[a.success]) for v, a in zip(values, env.attempts, strict=True)])


def _by_rubric(env: JudgeEnv, rng: np.random.Generator) -> Act:
    """Scores without a model and without the facts about the right answer."""
    found = RubricJudge()([replace(attempt, facts={}) for attempt in env.attempts])
    return _answering(env, [replace(found[attempt.id], explanation="") for attempt in env.attempts])


def _at_random(env: JudgeEnv, rng: np.random.Generator) -> Act:
    return _answering(env, [Score(float(rng.random())) for _ in env.attempts])


def _answering(env: JudgeEnv, scores: Sequence[Score]) -> Act:
    """Answers in the order in which the attempts are shown."""
    prompt = env.prompt
    text = write_answer({prompt.labels[place]: scores[place] for place in prompt.order})
    return lambda observation: text


class JudgeEnv(gym.Env[str, str]):
    """Order attempts at a task, as the task's own reward orders them.

    The observation is the question that :class:`~art_gym.wrappers.judging.LLMJudge` puts to a model, the
    reply the model's whole answer. The reward is Kendall's tau-b of the scores with the true rewards: 1 for
    the same order, 0 for equal scores, and -1 for the reverse order and for an answer that cannot be read.
    ``success`` says whether the highest score went to a best attempt alone. Attempts that read the same are
    one attempt, and groups whose rewards are all equal are played again.

    Tasks and splits are those of the environment whose attempts are judged.

    Args:
        env: That environment; an id or a file, as :func:`art_gym.lookup.find_env` takes it.
        size: Attempts in a group, at least 2.
        noise: Each player also plays with random replies, of a share up to this.
        max_context_tokens: Most tokens of material, as ``LLMJudge`` estimates them; longer attempts are cut
            in the middle.
        env_args: Arguments of the environment.

    Raises:
        ValueError: If ``size``, ``noise`` or ``max_context_tokens`` is out of range, or the environment has
            no scripted players.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own)
    baselines: ClassVar[Mapping[str, Baseline]] = {"random": _at_random, "rubric": _by_rubric}
    teachers: ClassVar[Mapping[str, Baseline]] = {"reward": _by_reward}
    max_turns = 1

    def __init__(
        self,
        env: str = "art/Email-v0",
        *,
        size: int = 4,
        noise: float = 0.5,
        max_context_tokens: int = 16_000,
        env_args: Mapping[str, Any] | None = None,
    ) -> None:
        if size < 2:
            raise ValueError(f"size is at least 2, since attempts are compared, got {size}")
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is a share from 0 to 1, got {noise}")
        if max_context_tokens < 1_000:
            raise ValueError(f"max_context_tokens is at least 1,000, got {max_context_tokens}")
        self.env = gym.make(find_env(env).id, **dict(env_args or {}))
        self.name, self.size, self.noise, self.max_context_tokens = env, size, noise, max_context_tokens
        self._players = players(self.env)
        if not self._players:
            raise ValueError(f"{env} has no scripted players: nobody plays the attempts")
        bare = self.env.unwrapped
        if hasattr(bare, "tasks"):
            self.tasks, self.split = bare.tasks, getattr(bare, "split", "train")
        self.observation_space, self.action_space = UnicodeText(), UnicodeText()
        self.attempts: tuple[Attempt, ...] = ()
        self.rewards: tuple[float, ...] = ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Play a group and ask about it; seed and options go to the environment that is played.

        Raises:
            RuntimeError: If all attempts earn the same, however often a group is played.
        """
        super().reset(seed=seed)
        start = int(self.np_random.integers(2**31))
        for _ in range(_MOST_DRAWS):
            task_id = self._play_group(start, options)
            if len(set(self.rewards)) > 1:
                break
            if not (options or {}).get("task"):
                start = int(self.np_random.integers(2**31))  # another task
        else:
            raise RuntimeError(f"all attempts at {self.name} earned the same in {_MOST_DRAWS} groups")
        rules, material = (message["content"] for message in self.prompt.messages)
        return f"{rules}\n\n{material}", {"task_id": task_id, "turn": 0, "tools": [], "system": rules}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the judge's answer, and end."""
        info: dict[str, Any] = {"turn": 1}
        try:
            scores = read_answer(action, self.prompt.labels)
        except AnswerFormatError as error:
            info |= {"error": {"kind": "unreadable", "message": str(error)}, "success": False}
            return f"The answer cannot be read: {error}.", -1.0, True, False, info
        values = [scores[label].value for label in self.prompt.labels]
        tau, top = judged_tau(values, self.rewards), top_agreement(values, self.rewards)
        assert tau is not None  # rewards differ
        info["success"] = top == 1
        return f"Kendall's tau with the rewards is {tau:.2f}.", tau, True, False, info

    def close(self) -> None:
        """Close the environment that is played."""
        self.env.close()

    def _play_group(self, seed: int, options: dict[str, Any] | None) -> str:
        """Play the attempts at one task, write the question, and return the task's id."""
        recorder, group, task_id = AttemptRecorder(), [], ""
        for number in range(self.size):
            observation, info = self.env.reset(seed=seed, options=options)
            recorder.begin(observation, info)
            task_id = str(info.get("task_id", ""))
            act, ended = self._player(), False
            while not ended:
                reply = act(observation)
                observation, reward, terminated, truncated, info = self.env.step(reply)
                recorder.add(reply, observation, reward, terminated, truncated, info)
                ended = terminated or truncated
            group.append(recorder.attempt(str(number)))
        digest = digest_group(group)
        batches = plan_batches(digest, self.max_context_tokens, self.size)
        self.prompt: Prompt = build_prompt(batches.shared, batches.attempts, RULER_RUBRIC, seed=0)
        self.attempts = tuple(group[int(ids[0])] for ids in digest.ids)
        self.rewards = tuple(round(attempt.reward, _DIGITS) for attempt in self.attempts)
        return task_id

    def _player(self) -> Act:
        """One of the players, with noise in half of the cases."""
        rng, bare = np.random.default_rng(self.np_random.integers(2**31)), self.env.unwrapped
        act = list(self._players.values())[int(rng.integers(len(self._players)))](bare, rng)
        if rng.random() < 0.5 or "random" not in self._players:
            return act
        return noisy(act, self._players["random"](bare, rng), rng.uniform(0, self.noise), rng)
