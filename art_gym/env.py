"""``TextEnv``: the Gymnasium environment that an author of a text task subclasses.

The author writes what is particular to the task: how an episode begins, and the tools. Everything else that
the contract promises (parsing, validation, turn limits, ``info``, tasks, snapshots) is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym

from art_gym.base import (
    WARN_AT,
    TaskEnv,
    TurnLimitSpec,
    add_terms,
    check_names,
    error_info,
    fit_text,
    jsonable,
    only_first_call,
    require_count,
    system_text,
    turns_left,
)
from art_gym.baselines import Baseline
from art_gym.errors import ResetNeededError, ToolError
from art_gym.parsing.parser import Call, ParseError, parse
from art_gym.random_calls import random_calls
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task
from art_gym.terminal import exchange
from art_gym.tools import Outcome, Tool, collect_tools

__all__ = ["Baseline", "TextEnv"]


class TextEnv(TurnLimitSpec, TaskEnv, gym.Env[str, str]):
    """A Gymnasium environment whose observations and actions are text.

    A subclass implements :meth:`begin` and at least one method marked with :func:`art_gym.tool`. Class
    attributes it may set:

    * ``instructions``: standing instructions, shown above the list of tools.
    * ``shared``: names of attributes set in ``__init__`` that never change afterwards, such as a mailbox;
      snapshots share them instead of copying.
    * ``baselines``: players that use no model, by name; ``"random"`` is always there.
    * ``teachers``: scripted players that may look at the answer, to learn from and not to compare with.

    Args:
        tasks: The tasks. Without any, the environment has one task and episodes differ by seed alone.
        split: The split that ``reset`` samples from.
        max_turns: The episode is truncated after this many replies; ``env.spec`` says so too.
        invalid_action_penalty: Subtracted from the reward of a reply that is not a valid call.
        render_mode: ``"ansi"`` (``render`` returns the latest exchange), ``"human"`` (prints it) or ``None``.

    Raises:
        ValueError: If an argument is out of range.
        UnknownTaskError: If ``split`` is not one of the tasks' splits.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's own)
    instructions: ClassVar[str] = ""
    # Attributes that never change after construction, so that a snapshot need not hold them.
    _fixed: ClassVar[frozenset[str]] = frozenset(
        {"tasks", "split", "max_turns", "invalid_action_penalty", "render_mode", "_spec", "metadata"}
        | {"action_space", "observation_space"}
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {"random": random_calls}
    teachers: ClassVar[Mapping[str, Baseline]] = {}
    tools: ClassVar[Mapping[str, Tool]] = {}
    system: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tools = collect_tools(cls)
        check_names(cls, tools, TextEnv, "turn", "system")
        cls.tools = tools
        if not isinstance(cls.instructions, str):
            raise TypeError(f"{cls.__name__}.instructions must be a str, not {cls.instructions!r:.80}")
        cls.baselines = {"random": random_calls, **cls.baselines}
        cls.system = system_text(cls.instructions, cls.tools)

    def __init__(
        self,
        tasks: Iterable[Task] | None = None,
        *,
        split: str = "train",
        max_turns: int = 10,
        invalid_action_penalty: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        if not self.tools:
            raise TypeError(f"{type(self).__name__} has no tool: mark at least one method with @tool")
        require_count("max_turns", max_turns)
        self._configure(tasks, split, invalid_action_penalty, render_mode)
        self.max_turns = max_turns
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.turn = 0
        self._running = False
        self._invalid_actions = 0
        self._latest = ""

    def begin(self, task: Task) -> str:
        """Set the episode up and return the task's part of the first observation.

        Called by ``reset`` when ``self.task`` and ``self.np_random`` are ready. The standing instructions are
        put before it.
        """
        return task.prompt

    def on_truncation(self) -> Outcome:
        """Return what is added to the last turn if the turn limit ends the episode."""
        return Outcome("No turns are left.")

    def observation_after_error(self) -> str:
        """Return what is shown below the error message for an invalid reply, such as the state of a game."""
        return ""

    def facts(self) -> Mapping[str, Any]:
        """Return what is known about the finished episode, for judges; never shown to the agent.

        JSON-able. Known keys, all optional: ``expected`` and ``result`` (the right answer and the agent's
        answer: a text, a number, or a mapping), ``task_type`` (``"game"`` if a long episode is no bad one),
        ``match`` (``"exact"`` if a near result is as wrong as any other, else ``"similar"``),
        ``optimal_turns`` (fewest turns a good agent needs), ``required_actions`` (names of tools that a
        complete attempt calls). Leave a key out rather than give ``None``, and give a key one type in all
        episodes: vector environments put them into arrays.
        """
        return {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: The same seed gives the same task and the same episode.
            options: ``{"task": id}`` chooses a task, ``{"split": name}`` the split to sample from.

        Returns:
            The first observation, and ``info`` with ``task_id``, ``turn`` (0), ``tools`` (schemas in OpenAI's
            format), ``system`` (the standing instructions that the observation begins with).

        Raises:
            UnknownTaskError: If the task or split does not exist.
            ValueError: For any other option.
        """
        super().reset(seed=seed)
        self.task = self._choose_task(options or {})
        self.turn = 0
        self._running = True
        self._invalid_actions = 0
        text = self._returned("begin", self._begin("turn", "system"), str)
        observation = self._fit(f"{self.system}\n\n{text}")
        info: dict[str, Any] = {
            "task_id": self.task.id,
            "turn": 0,
            "tools": [item.schema() for item in self.tools.values()],
            "system": self.system,
        }
        if self.render_mode is not None:
            self._render_human("", observation)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the model's whole reply as the action.

        Whatever the reply contains, the answer is an observation; only a bug in a tool raises.

        Returns:
            Observation, reward, terminated, truncated and ``info`` with ``task_id``, ``turn``, ``call`` or
            ``error``, ``score_terms`` (named parts that sum to the reward) and, at the end, ``success``,
            ``metrics`` and ``facts``.

        Raises:
            ResetNeededError: Before ``reset`` or after the end of the episode.
            TypeError: If ``action`` is not a ``str``, or a method of the author's returns another type.
        """
        if not self._running:
            raise ResetNeededError("call reset() first: no episode is running")
        if not isinstance(action, str):
            raise TypeError(f"an action is the reply as a str, not {type(action).__name__}")
        self.turn += 1
        info: dict[str, Any] = {"task_id": self.task.id, "turn": self.turn}
        read = parse(action, self.tools)
        outcome = self._reject(read, info) if isinstance(read, ParseError) else self._call_tool(read, info)
        text, terms = outcome.observation, dict(outcome.score_terms)
        terminated = bool(outcome.ends)
        left = self.max_turns - self.turn
        truncated = not terminated and left <= 0
        if terminated or truncated:
            text = self._finish(outcome, text, terms, info, truncated=truncated)
        elif left <= WARN_AT:
            text += turns_left(left)
        info["score_terms"] = terms
        text = self._fit(text)
        if self.render_mode is not None:
            self._render_human(action, text)
        return text, sum(terms.values(), 0.0), terminated, truncated, info

    def render(self) -> str | None:
        """Return the latest reply and observation in ``"ansi"`` mode, otherwise ``None``.

        Characters that a terminal would obey, such as escape sequences in a mail, are replaced by pictures.
        """
        return self._latest if self.render_mode == "ansi" else None

    def truncate(self) -> dict[str, Any]:
        """End the episode from outside, for example if a model's context has no room for another turn.

        Returns:
            The ``info`` of the end. Its ``score_terms`` are what ``on_truncation`` pays; add them to the last
            step's.

        Raises:
            ResetNeededError: If no episode is running.
        """
        if not self._running:
            raise ResetNeededError("call reset() first: no episode is running")
        info: dict[str, Any] = {"score_terms": {}}
        self._finish(Outcome(""), "", info["score_terms"], info, truncated=True)
        return info

    def _reject(self, error: ParseError, info: dict[str, Any]) -> Outcome:
        """Answer a reply that is not a valid call."""
        self._invalid_actions += 1
        info["error"] = error_info(error)
        shown = self.observation_after_error()
        return Outcome(f"{error.message}\n{shown}" if shown else error.message, self._penalty())

    def _call_tool(self, call: Call, info: dict[str, Any]) -> Outcome:
        try:
            method = getattr(type(self), call.name)  # `begin` may set `self.answer` beside a tool `answer`
            result = self._returned(call.name, method(self, **call.arguments), str, Outcome)
        except ToolError as refusal:
            return self._reject(ParseError("refused", str(refusal)), info)
        info["call"] = {"name": call.name, "arguments": jsonable(call.arguments)}
        outcome = Outcome(result) if isinstance(result, str) else result
        if outcome.ends is None and self.tools[call.name].ends:
            outcome = replace(outcome, ends=True)
        if call.extra_calls:
            text = f"{outcome.observation}\n{only_first_call(call.extra_calls)}"
            outcome = replace(outcome, observation=text)
        return outcome

    def _finish(
        self, outcome: Outcome, text: str, terms: dict[str, float], info: dict[str, Any], *, truncated: bool
    ) -> str:
        """End the episode: fill in ``terms`` and ``info``, and return the last observation."""
        self._running = False
        success, metrics = outcome.success, dict(outcome.metrics)
        if truncated:
            last = self._returned("on_truncation", self.on_truncation(), Outcome)
            text = f"{text}\n{last.observation}" if last.observation else text
            success, metrics = last.success, {**metrics, **last.metrics}
            add_terms(terms, last.score_terms)
        info["success"] = bool(success)
        counts = {"turns": float(self.turn), "invalid_actions": float(self._invalid_actions)}
        info["metrics"] = counts | metrics
        info["facts"] = dict(self._returned("facts", self.facts(), Mapping))
        return text

    def _fit(self, text: str) -> str:
        return fit_text(text, self.observation_space.max_length)  # type: ignore[attr-defined]

    def _render_human(self, reply: str, observation: str) -> None:
        self._latest = exchange(reply, observation)
        if self.render_mode == "human":
            print(self._latest)


def truncate(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """End an episode that its player has left, as the turn limit would.

    Returns:
        As :meth:`TextEnv.truncate`; empty if no episode is running, or the environment is no ``TextEnv``.
    """
    text_env = env.unwrapped
    return text_env.truncate() if isinstance(text_env, TextEnv) and text_env._running else {}
