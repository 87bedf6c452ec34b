"""``TextEnv``: the Gymnasium environment that an author of a text task subclasses.

The author writes what is particular to the task: how an episode begins, and the tools. Everything else that
the contract promises (parsing, validation, turn limits, ``info``, tasks, snapshots) lives here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from art_gym.baselines import random_calls
from art_gym.errors import ResetNeeded, ToolError, did_you_mean
from art_gym.parser import Call, Invalid, parse
from art_gym.snapshots import Restorable
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task, TaskSet
from art_gym.tools import Outcome, Tool, collect_tools, usage_lines

Baseline = Callable[[Any, np.random.Generator], Callable[[str], str]]
"""A player that uses no model: ``baseline(env, rng)``, after a reset, gives ``act(observation) -> reply``."""

_OPTIONS = ("task", "split")
_WARN_AT = 2  # how many turns before the last one the observation begins to count them
# Attributes that never change after construction, so that a snapshot need not hold them.
_FIXED = frozenset(
    {"tasks", "split", "max_turns", "invalid_action_penalty", "render_mode", "spec", "metadata"}
    | {"action_space", "observation_space"}
)


class TextEnv(Restorable, gym.Env[str, str]):
    """A Gymnasium environment whose observations and actions are text.

    A subclass implements :meth:`begin` and at least one method marked with :func:`art_gym.tool`. Class
    attributes it may set:

    * ``instructions``: standing instructions, shown above the list of tools.
    * ``shared``: names of attributes set in ``__init__`` that never change afterwards (a mailbox, a table);
      snapshots share them instead of copying.
    * ``baselines``: players that use no model, by name; ``"random"`` is always there.
    * ``teachers``: scripted players that may look at the answer, to learn from and not to compare with.

    Args:
        tasks: What can be asked. Without any, the environment has one task and differs by seed alone.
        split: The split that ``reset`` samples from.
        max_turns: The episode is truncated after this many replies.
        invalid_action_penalty: Subtracted from the reward of a reply that is no valid call.
        render_mode: ``"ansi"`` (``render`` returns the latest exchange), ``"human"`` (prints it) or ``None``.

    Raises:
        ValueError: For arguments out of range.
        UnknownTask: Where ``split`` is not one of the tasks' splits.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's own)
    instructions: ClassVar[str] = ""
    _fixed: ClassVar[frozenset[str]] = _FIXED
    baselines: ClassVar[Mapping[str, Baseline]] = {"random": random_calls}
    teachers: ClassVar[Mapping[str, Baseline]] = {}
    tools: ClassVar[Mapping[str, Tool]] = {}
    system: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = collect_tools(cls)
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
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns}")
        if not 0 <= invalid_action_penalty < float("inf"):
            raise ValueError(f"invalid_action_penalty must be 0 or more, not {invalid_action_penalty}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode `{render_mode}`{did_you_mean(render_mode, self.metadata['render_modes'])}"
            )
        if tasks is None:
            tasks = [Task("default", "", split)]
        self.tasks = tasks if isinstance(tasks, TaskSet) else TaskSet(tasks)
        self.tasks.split(split)
        self.split = split
        self.max_turns = max_turns
        self.invalid_action_penalty = float(invalid_action_penalty)
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.task = self.tasks.split(split)[0]
        self.turn = 0
        self._running = False
        self._invalid_actions = 0
        self._latest = ("", "")

    def begin(self, task: Task) -> str:
        """Set the episode up and return the task's part of the first observation.

        Called by ``reset`` when ``self.task`` and ``self.np_random`` are ready. The standing instructions are
        put before it.
        """
        return task.prompt

    def on_truncation(self) -> Outcome:
        """What is added to the last turn when the turn limit cuts the episode off."""
        return Outcome("No turns are left.")

    def after_refusal(self) -> str:
        """What is shown below the words that refuse a reply, such as the state of a game."""
        return ""

    def facts(self) -> Mapping[str, Any]:
        """What is known about the episode that has just ended, for judges; never shown to the agent.

        JSON-able. Known keys, all optional: ``task_type`` (such as ``"email_search"``), ``expected`` and
        ``result`` (what was asked for and what the agent ended with: a text, a number, or a mapping),
        ``match`` (``"exact"`` where a near result is as wrong as any, else ``"similar"``), ``optimal_turns``
        (fewest turns a good agent needs), ``required_actions`` (names of tools that a complete attempt
        calls). Leave a key out rather than give ``None``, and give a key one type in all episodes: vector
        environments put them into arrays.
        """
        return {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: The same seed gives the same task and the same episode.
            options: ``{"task": id}`` chooses a task, ``{"split": name}`` the split to sample from.

        Returns:
            The first observation, and ``info`` with ``task_id``, ``turn`` (0), ``tools`` (schemas in OpenAI's
            format), ``system`` (the standing instructions that the observation begins with).

        Raises:
            UnknownTask: For a task or split that does not exist.
            ValueError: For any other option.
        """
        super().reset(seed=seed)
        self.task = self._choose_task(options or {})
        self.turn = 0
        self._running = True
        self._invalid_actions = 0
        observation = self._fit(f"{self.system}\n\n{self.begin(self.task)}")
        info: dict[str, Any] = {
            "task_id": self.task.id,
            "turn": 0,
            "tools": [item.schema() for item in self.tools.values()],
            "system": self.system,
        }
        if self.render_mode is not None:
            self._show("", observation)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the model's whole reply as the action.

        Whatever the reply says, this answers in words; only a bug in a tool raises.

        Returns:
            Observation, reward, terminated, truncated and ``info`` with ``task_id``, ``turn``, ``call`` or
            ``error``, ``score_terms`` (named parts that sum to the reward) and, at the end, ``success``,
            ``metrics`` and ``facts``.

        Raises:
            ResetNeeded: Before ``reset`` or after the episode's end.
            TypeError: Where ``action`` is not a ``str``.
        """
        if not self._running:
            raise ResetNeeded("call reset() first: no episode is running")
        if not isinstance(action, str):
            raise TypeError(f"an action is the reply as a str, not {type(action).__name__}")
        self.turn += 1
        info: dict[str, Any] = {"task_id": self.task.id, "turn": self.turn}
        read = parse(action, self.tools)
        outcome = self._refuse(read, info) if isinstance(read, Invalid) else self._carry_out(read, info)
        terms: dict[str, float] = {}
        for name, value in outcome.score_terms.items():
            terms[name] = float(value)
        text = outcome.observation
        terminated = bool(outcome.ends)
        left = self.max_turns - self.turn
        truncated = not terminated and left <= 0
        if terminated or truncated:
            text = self._finish(outcome, text, terms, info, truncated=truncated)
        elif left <= _WARN_AT:
            text += f"\n({left} turn{'s' if left > 1 else ''} left)"
        info["score_terms"] = terms
        text = self._fit(text)
        if self.render_mode is not None:
            self._show(action, text)
        return text, sum(terms.values(), 0.0), terminated, truncated, info

    def render(self) -> str | None:
        """The latest reply and observation: returned in ``"ansi"`` mode, ``None`` otherwise."""
        if self.render_mode != "ansi":
            return None
        reply, observation = self._latest
        return f"> {reply}\n{observation}" if reply else observation

    def _choose_task(self, options: Mapping[str, Any]) -> Task:
        for name in options:
            if name not in _OPTIONS:
                raise ValueError(f"no option `{name}` of reset{did_you_mean(str(name), _OPTIONS)}")
        if options.get("task") is not None:
            return self.tasks.get(options["task"])
        split = options.get("split")
        return self.tasks.split(self.split if split is None else split).sample(self.np_random)

    def _refuse(self, invalid: Invalid, info: dict[str, Any]) -> Outcome:
        """Answer a reply that is no valid call, and tell ``info``."""
        self._invalid_actions += 1
        info["error"] = {"kind": str(invalid.kind), "message": invalid.message}
        terms = {"invalid_action": -self.invalid_action_penalty} if self.invalid_action_penalty else {}
        shown = self.after_refusal()
        return Outcome(f"{invalid.message}\n{shown}" if shown else invalid.message, terms)

    def _carry_out(self, call: Call, info: dict[str, Any]) -> Outcome:
        """Call the tool, and tell ``info``."""
        try:
            result = getattr(self, call.name)(**call.arguments)
        except ToolError as refusal:
            return self._refuse(Invalid("refused", str(refusal)), info)
        info["call"] = {"name": call.name, "arguments": jsonable(call.arguments)}
        outcome = result if isinstance(result, Outcome) else Outcome(result)
        if outcome.ends is None and self.tools[call.name].ends:
            outcome = replace(outcome, ends=True)
        if call.extra_calls:
            note = f"\n(Only the first of {call.extra_calls + 1} calls was carried out.)"
            outcome = replace(outcome, observation=outcome.observation + note)
        return outcome

    def _finish(
        self, outcome: Outcome, text: str, terms: dict[str, float], info: dict[str, Any], *, truncated: bool
    ) -> str:
        """End the episode: fill in ``terms`` and ``info``, and return the last observation."""
        self._running = False
        success, metrics = outcome.success, dict(outcome.metrics)
        if truncated:
            last = self.on_truncation()
            text = f"{text}\n{last.observation}" if last.observation else text
            success, metrics = last.success, {**metrics, **last.metrics}
            for name, value in last.score_terms.items():
                terms[name] = terms.get(name, 0.0) + float(value)
        info["success"] = bool(success)
        counts = {"turns": float(self.turn), "invalid_actions": float(self._invalid_actions)}
        info["metrics"] = counts | {name: float(value) for name, value in metrics.items()}
        info["facts"] = dict(self.facts())
        return text

    def _fit(self, text: str) -> str:
        """Make a text fit the space: no lone surrogates, and cut in the middle, in words, where too long."""
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                text = text.encode(errors="replace").decode()
        limit = self.observation_space.max_length  # type: ignore[attr-defined]
        if len(text) <= limit:
            return text
        note = f"\n[… {len(text) - limit} characters left out …]\n"
        half = (limit - len(note)) // 2
        return text[:half] + note + text[-half:]

    def _show(self, reply: str, observation: str) -> None:
        self._latest = (reply, observation)
        if self.render_mode == "human":
            print(f"> {reply}\n{observation}" if reply else observation)


def system_text(instructions: str, tools: Mapping[str, Tool]) -> str:
    """The standing instructions: the author's, and what the tools are; empty without tools."""
    if not tools:
        return ""
    example = next(iter(tools.values())).example()
    lines = f"Reply with one call of a tool, for example {example}\nTools:\n{usage_lines(tools.values())}"
    return f"{instructions.strip()}\n\n{lines}" if instructions.strip() else lines


def jsonable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments with dates as text."""
    plain = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, date):
            plain[name] = value.isoformat()
        elif isinstance(value, list):
            plain[name] = [item.isoformat() if isinstance(item, date) else item for item in value]
    return plain
