"""``TextAdapter``: makes a text environment of one that was not made for language models.

One line brings any Gymnasium environment with discrete actions to whatever trains on text::

    env = TextAdapter(gym.make("CliffWalking-v1"), observe="You stand on field {}.".format,
                      actions=["up", "right", "down", "left"])

Texts in observations and actions go through as they are, out of and into dictionaries too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from art_gym.base import env_name, require_choice, system_text
from art_gym.baselines import Act, Baseline
from art_gym.env import TextEnv
from art_gym.errors import ToolError
from art_gym.parameters import Parameter
from art_gym.tasks import Task
from art_gym.tools import Outcome, tool
from art_gym.wrappers.isolated_random import IsolatedRandom

DEFAULT_MAX_TURNS = 100
"""Turns of an episode if neither the caller nor the environment sets a limit."""


@dataclass(frozen=True, slots=True)
class EpisodeProgress:
    """An episode so far, as the environment itself reports it."""

    env_return: float
    """The sum of its rewards."""
    terminated: bool
    """Whether it ended the episode."""
    info: Mapping[str, Any]
    """Its latest ``info``."""


Success = Callable[[EpisodeProgress], bool]

_MASKS = ("refuse", "show", "ignore")
_THOUGHT = "</think>"


def random_player(env: Any, rng: np.random.Generator) -> Act:
    """Any action that is possible now, each equally likely; ``pass`` if actions are free text."""

    def act(observation: str) -> str:
        names = env.unwrapped.possible_actions()
        return names[int(rng.integers(len(names)))] if names else "pass"

    return act


class TextAdapter(TextEnv):
    """Any environment as a :class:`~art_gym.TextEnv`: observations as text, actions by their names.

    It keeps the whole contract of a ``TextEnv``. A reply is read by the project's parser: ``left``,
    ``act("left")``, a native tool call; a near miss is named, and a reply that is not an action costs
    ``invalid_reward`` and does not reach the environment. ``info`` has the standard keys; ``success`` is
    there if the argument ``success`` or the environment's own ``info`` gives it (``"success"``,
    ``"is_success"``). The environment's rewards are the score term ``"env"``, their sum the metric
    ``"env_return"``.

    The same seed gives the same episode as in the environment itself: ``reset`` hands it on. Without a seed,
    one is drawn.

    If an environment takes free text, the whole reply is the action, without what was thought before
    ``</think>``.

    A subclass may override :meth:`describe` and :meth:`restart`, list ``baselines`` and ``teachers``, and
    read ``played``, the episode so far.

    Args:
        env: The environment; the adapter owns it from then on.
        observe: Makes text of an observation. Not needed for texts and dictionaries with one text.
        actions: The names of discrete actions in their order, or actions by name if others than discrete
            ones are meant. By default numbers; not needed for free text.
        instructions: Standing instructions, shown above the list of actions.
        tasks: What ``reset`` chooses from. A task's ``data`` may hold ``"seed"`` and ``"options"`` for the
            environment's ``reset``; its prompt stands above the first observation.
        split: The split that ``reset`` samples from.
        max_turns: Replies in an episode; by default the environment's own time limit, or else
            ``DEFAULT_MAX_TURNS``.
        invalid_reward: Reward of a reply that is not an action; 0 or less.
        masks: How an ``"action_mask"`` in ``info`` or in the observation is used: ``"refuse"`` shows what
            is possible and refuses the rest, ``"show"`` only shows it, ``"ignore"`` leaves it out.
        success: Whether an episode succeeded; by default what the environment's ``info`` says at its end.
        refusals: Exceptions by which the environment's ``step`` refuses an action: they become messages.
        isolated_random: Keep the global ``random`` and ``numpy.random`` from the environment, for those that
            seed them; see :class:`~art_gym.wrappers.isolated_random.IsolatedRandom`.
        render_mode: ``"ansi"``, ``"human"`` or ``None``, as in every ``TextEnv``.

    Raises:
        TypeError: If observations or actions are not text, and no argument says how to convert them.
        ValueError: For arguments out of range, or names that do not fit the actions.
    """

    shared: ClassVar[tuple[str, ...]] = (
        "tools", "system", "_observe", "_write", "_actions", "_judge", "_refusals", "_masks",
    )  # fmt: skip
    baselines: ClassVar[Mapping[str, Baseline]] = {"random": random_player}
    played: EpisodeProgress

    def __init__(
        self,
        env: Any,
        *,
        observe: Callable[[Any], str] | None = None,
        actions: Sequence[str] | Mapping[str, Any] | None = None,
        instructions: str = "",
        tasks: Iterable[Task] | None = None,
        split: str = "train",
        max_turns: int | None = None,
        invalid_reward: float = -0.1,
        masks: str = "refuse",
        success: Success | None = None,
        refusals: tuple[type[Exception], ...] = (),
        isolated_random: bool = False,
        render_mode: str | None = None,
    ) -> None:
        for name, given in (("observe", observe), ("success", success)):
            if given is not None and not callable(given):
                raise TypeError(f"{name}= must be a function, not {given!r}")
        if not hasattr(env, "action_space"):
            raise TypeError(f"env must be an environment, as gym.make makes one, not {env!r}")
        if not invalid_reward <= 0:
            raise ValueError(f"invalid_reward must be 0 or less, not {invalid_reward}")
        require_choice("masks", masks, _MASKS)
        super().__init__(
            tasks,
            split=split,
            max_turns=_time_limit(env) if max_turns is None else max_turns,
            invalid_action_penalty=-invalid_reward,
            render_mode=render_mode,
        )
        self.env = env
        self._observe = observe or self._reader()
        self._write = None if actions is not None else writer_of(env.action_space)
        self._actions = {} if self._write is not None else _named_actions(env, actions)
        # Where an action stands in a mask: at its number, whatever the order of the names.
        self._places: Sequence[int] = range(len(self._actions))
        if isinstance(env.action_space, gym.spaces.Discrete):
            self._places = [int(action - env.action_space.start) for action in self._actions.values()]
        self._masks, self._judge, self._refusals = masks, success, refusals
        self._random = IsolatedRandom() if isolated_random else None
        self._seed: int | None = None
        self._begin_episode(None, {})
        # An author's tools belong to a class; here they are the actions of one environment.
        choice = Parameter("action", Literal, "What to do.", choices=tuple(self._actions))
        act = replace(self.tools["act"], parameters=(choice,))
        vars(self)["tools"] = {"say": self.tools["say"]} if self._write else {"act": act}
        standing = instructions or self.instructions
        vars(self)["system"] = standing.strip() if self._write else system_text(standing, self.tools)

    def describe(self, observation: Any) -> str:
        """An observation as text.

        Raises:
            TypeError: If ``observe`` gives something else.
        """
        text = self._observe(observation)
        if not isinstance(text, str):
            raise TypeError(f"observe must give a str, not {type(text).__name__}: {text!r}")
        return text

    def restart(self, task: Task, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset the environment for a task; here with the ``"seed"`` and ``"options"`` of the task's data."""
        options = task.data.get("options")
        result: tuple[Any, dict[str, Any]] = self.env.reset(
            seed=task.data.get("seed", seed), options=None if options is None else dict(options)
        )
        return result

    @property
    def takes_free_text(self) -> bool:
        """Whether the whole reply is the action; then the agent is told of no tools."""
        return self._write is not None

    def possible_actions(self) -> list[str]:
        """The names of the actions that the environment's mask allows now: all, if there is no mask."""
        names = list(self._actions)
        if self._mask is None:
            return names
        return [name for name, allowed in zip(names, self._mask, strict=True) if allowed]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode, see :meth:`TextEnv.reset`; the environment gets the same seed."""
        self._seed = seed
        observation, info = super().reset(seed=seed, options=options)
        if self.takes_free_text:
            info["tools"] = []
            if not self.system:
                observation = observation.removeprefix("\n\n")
        return observation, info

    def begin(self, task: Task) -> str:
        """Reset the environment and describe the first observation."""
        seed = int(self.np_random.integers(2**31)) if self._seed is None else self._seed
        with self._global_random(task.data.get("seed", seed)):
            observation, info = self.restart(task, seed)
        self._begin_episode(observation, info)
        self._text = self._shown(observation)
        return f"{task.prompt}\n{self._text}" if task.prompt else self._text

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the model's whole reply as the action, see :meth:`TextEnv.step`."""
        self._reply, self._cut = action, False
        free = self.takes_free_text and isinstance(action, str)
        observation, reward, terminated, truncated, info = super().step("say()" if free else action)
        if free and "call" in info:
            info["call"] = {"name": "say", "arguments": {"text": action}}
        if self._cut:
            terminated, truncated = False, True
        if "success" in info and self._succeeded() is None:
            del info["success"]
        return observation, reward, terminated, truncated, info

    @tool
    def act(self, action: str) -> Outcome:
        """Take an action.

        Args:
            action: Its name.
        """
        if self._masks == "refuse" and action not in self.possible_actions():
            raise ToolError(f"`{action}` is not possible now; possible: {', '.join(self.possible_actions())}")
        return self._advance(self._actions[action])

    @tool
    def say(self) -> Outcome:
        """Say the whole reply to the environment."""
        assert self._write is not None
        return self._advance(self._write(self._reply.rpartition(_THOUGHT)[2].lstrip()))

    def observation_after_error(self) -> str:
        """What was seen last, and what could be done."""
        names = f"\nactions: {', '.join(self._actions)}" if self._actions and self._mask is None else ""
        return f"{self._text}{names}"

    def on_truncation(self) -> Outcome:
        """The turn limit; it may still be a success, if the environment or ``success`` says so."""
        metrics = {"env_return": self.played.env_return}
        return Outcome("No turns are left.", success=bool(self._succeeded()), metrics=metrics)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _advance(self, action: Any) -> Outcome:
        """Step the environment and return its result."""
        try:
            with self._global_random():
                observation, reward, terminated, truncated, info = self.env.step(action)
        except self._refusals as refusal:
            raise ToolError(f"the environment refused this: {refusal}") from refusal
        self._notice(observation, info)
        self.played = EpisodeProgress(self.played.env_return + float(reward), bool(terminated), info)
        self._cut = bool(truncated) and not terminated
        self._text = self.describe(observation) if terminated else self._shown(observation)
        return Outcome(
            f"{self._text}\nThe time is up." if self._cut else self._text,
            {"env": float(reward)},
            ends=bool(terminated or truncated),
            success=bool(self._succeeded()),
            metrics={"env_return": self.played.env_return},
        )

    def _global_random(self, seed: int | None = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._random is None else self._random.active(seed)

    def _begin_episode(self, observation: Any, info: Mapping[str, Any]) -> None:
        self.played = EpisodeProgress(0.0, False, info)
        self._reply, self._text, self._cut = "", "", False
        self._notice(observation, info)

    def _notice(self, observation: Any, info: Mapping[str, Any]) -> None:
        """Keep the action mask."""
        mask = info.get("action_mask")
        if mask is None and isinstance(observation, Mapping):
            mask = observation.get("action_mask")
        if mask is None or self._masks == "ignore" or self.takes_free_text:
            self._mask = None
        else:
            self._mask = [bool(mask[place]) for place in self._places]

    def _shown(self, observation: Any) -> str:
        text = self.describe(observation)
        return text if self._mask is None else f"{text}\npossible: {', '.join(self.possible_actions())}"

    def _succeeded(self) -> bool | None:
        """Whether the episode is a success, ``None`` if that is not known."""
        if self._judge is not None:
            return bool(self._judge(self.played))
        info = self.played.info
        found = [info[name] for name in ("success", "is_success") if name in info]
        return bool(found[0]) if found else None

    def _reader(self) -> Callable[[Any], str]:
        reader = reader_of(self.env.observation_space)
        if reader is None and type(self).describe is TextAdapter.describe:
            raise TypeError(
                f"the observations of {env_name(self.env)} are {self.env.observation_space}, not text: pass "
                "observe=, a callable that makes a str of an observation"
            )
        return reader or str

    def _render_human(self, reply: str, observation: str) -> None:
        super()._render_human(self._reply if self._write else reply, observation)


_TEXT_KEYS = ("text", "observation", "action", "message", "messages")
"""Names of the part that holds the text, if a dictionary has several texts."""


def is_text(space: object) -> bool:
    """Whether a space's members are ``str``: Gymnasium's ``Text``, ours, and other libraries' own."""
    dtype = space.dtype if isinstance(space, gym.Space) else None
    return dtype is not None and dtype.kind == "U"


def text_key(space: gym.Space[Any]) -> str | None:
    """The part of a dictionary that holds the text; ``None`` if there is none or it is not clear."""
    if not isinstance(space, gym.spaces.Dict):
        return None
    texts = [name for name, part in space.spaces.items() if is_text(part)]
    if len(texts) > 1:
        texts = [name for name in _TEXT_KEYS if name in texts][:1]
    return texts[0] if texts else None


# What these return pickles, unlike closures.
def reader_of(space: gym.Space[Any]) -> Callable[[Any], str] | None:
    """Return what takes the text out of an observation of this space; ``None`` if it has none."""
    key = text_key(space)
    return str if is_text(space) else itemgetter(key) if key else None


def writer_of(space: gym.Space[Any]) -> Callable[[str], Any] | None:
    """Return what makes an action of this space from text; ``None`` if it takes more than text."""
    key = text_key(space)
    if key and isinstance(space, gym.spaces.Dict) and len(space.spaces) == 1:
        return partial(_in_dict, key)
    return str if is_text(space) else None


def _in_dict(key: str, text: str) -> dict[str, str]:
    return {key: text}


def _named_actions(env: Any, actions: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    """The environment's actions by name.

    Raises:
        TypeError: If actions are not discrete and have no names.
        ValueError: If the names do not fit.
    """
    space = env.action_space
    if isinstance(actions, Mapping):
        named = dict(actions)
        for name, action in named.items():
            # Other spaces are stricter than most environments, as about the type of an array's numbers.
            if isinstance(space, gym.spaces.Discrete) and action not in space:
                raise ValueError(f"actions= has {action!r} for `{name}`, which is not in {space}")
    elif isinstance(actions, set | frozenset):
        raise TypeError(f"actions= must be a list, whose order says which action is which, not {actions!r}")
    elif not isinstance(space, gym.spaces.Discrete):
        raise TypeError(
            f"the actions of {env_name(env)} are {space}, neither text nor discrete: pass actions=, a dict "
            "from names to the actions that are meant"
        )
    else:
        numbers = range(int(space.start), int(space.start + space.n))
        names = [str(number) for number in numbers] if actions is None else list(actions)
        if len(names) != len(numbers):
            raise ValueError(f"{env_name(env)} has {len(numbers)} actions, but actions= names {len(names)}")
        named = dict(zip(names, numbers, strict=True))
        if len(named) < len(names):
            raise ValueError(f"actions= names one action twice: {', '.join(names)}")
    known = {name.lower() for name in named if isinstance(name, str) and name.strip()}
    if not named or len(known) < len(named):
        raise ValueError(f"actions= needs names, as str, that differ in more than case, not {list(named)}")
    return named


def _time_limit(env: Any) -> int:
    spec = getattr(env, "spec", None)
    return (None if spec is None else spec.max_episode_steps) or DEFAULT_MAX_TURNS
