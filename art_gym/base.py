"""What ``TextEnv`` and ``TextAECEnv`` share: tasks, snapshots, instructions, and text that fits its space."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.registration import EnvSpec

from art_gym.errors import ToolDeclarationError, did_you_mean
from art_gym.parameters import plain
from art_gym.parsing.parser import ParseError
from art_gym.spaces import MAX_LENGTH
from art_gym.tasks import Task, TaskSet
from art_gym.tools import Tool, usage_lines

_PLAIN = (bool, int, float, str, type(None))
WARN_AT = 2
"""Observations show the remaining turns from so many turns before the limit."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an episode, its random generator included; it can be restored any number of times."""

    env: str
    """The class that it was taken from."""
    state: bytes
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The plain values among what that environment was made with."""


class SnapshotMixin:
    """Adds :meth:`snapshot` and :meth:`restore`: they keep all attributes, random generators included.

    Class attributes:

    * ``shared``: names of attributes set in ``__init__`` that never change afterwards, such as a mailbox;
      snapshots share them instead of copying.
    """

    shared: ClassVar[tuple[str, ...]] = ()
    _fixed: ClassVar[frozenset[str]] = frozenset()
    """More such names, the same for every subclass."""

    def snapshot(self) -> Snapshot:
        """Take the state at this moment; :meth:`restore` goes back to it, here or in another instance."""
        kept, settings = self._kept()
        state = {key: value for key, value in self.__dict__.items() if key not in kept}
        return Snapshot(_qualified_name(type(self)), pickle.dumps(state, pickle.HIGHEST_PROTOCOL), settings)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, which stays usable.

        Raises:
            ValueError: If it was taken from another class, or from an environment made with other arguments:
                other tasks, or another plain value that is fixed or ``shared``; not ``render_mode``.
        """
        name = _qualified_name(type(self))
        if snapshot.env != name:
            raise ValueError(f"this snapshot is of {snapshot.env}, not of {name}")
        kept, here = self._kept()
        for key, value in here.items():
            if (there := snapshot.settings.get(key)) != value:
                values = f"{key}={there!r:.80}, this one with {value!r:.80}"
                raise ValueError(f"this snapshot is of an environment made with {values}")
        state = pickle.loads(snapshot.state)
        if (task := state.get("task")) and isinstance(tasks := getattr(self, "tasks", None), TaskSet):
            own = tasks._by_id.get(task.id)
            if own is None or (own.prompt, own.split) != (task.prompt, task.split):  # the state has its data
                which = f"`{task.id}` ({task.prompt!r:.60}), which is none of this environment's tasks"
                raise ValueError(f"this snapshot is of {which}: make both with the same arguments")
        fixed = {key: value for key, value in self.__dict__.items() if key in kept}
        self.__dict__.clear()
        self.__dict__.update(fixed | state)

    def _kept(self) -> tuple[frozenset[str], dict[str, Any]]:
        """The attributes that snapshots leave out, and the plain values of them, in a dataclass too.

        :meth:`restore` compares these values; the rest may be large. They are collected once.
        """
        found: tuple[frozenset[str], dict[str, Any]] | None = self.__dict__.get("_kept_values")
        if found is None:
            names = self._fixed.union(self.shared, ["_kept_values"])
            plain: dict[str, Any] = {}
            for key in sorted(names - {"render_mode", "_spec"}):
                value = self.__dict__.get(key)
                parts = {key: value}
                if is_dataclass(value) and not isinstance(value, type):
                    parts = {one.name: getattr(value, one.name) for one in fields(value)}
                plain |= {name: part for name, part in parts.items() if isinstance(part, _PLAIN)}
            found = self.__dict__["_kept_values"] = names, plain
        return found


class TurnLimitSpec:
    """Writes an environment's ``max_turns`` into its own spec, for wrappers that read ``max_episode_steps``.

    The registered spec has none, since Gymnasium would add a ``TimeLimit`` of it whatever ``max_turns`` is.
    """

    max_turns: int
    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """What ``gym.make`` made the environment from."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        if not hasattr(self, "max_turns"):
            raise TypeError(f"{type(self).__name__}.__init__ has to call super().__init__()")
        self._spec = copy.copy(spec)
        if self._spec is not None and self._spec.max_episode_steps is None:
            self._spec.max_episode_steps = self.max_turns


class TaskEnv(SnapshotMixin):
    """The settings that text environments and text games have in common, and the choice of a task."""

    metadata: dict[str, Any]
    np_random: np.random.Generator

    def _configure(
        self,
        tasks: Iterable[Task] | None,
        split: str,
        invalid_action_penalty: float,
        render_mode: str | None,
    ) -> None:
        """Check and set the common arguments of ``__init__``."""
        penalty = invalid_action_penalty
        if not (isinstance(penalty, int | float | np.floating) and 0 <= penalty < float("inf")):
            raise ValueError(f"invalid_action_penalty must be a number, 0 or more, not {penalty!r}")
        if render_mode is not None:
            require_choice("render_mode", render_mode, self.metadata["render_modes"])
        if tasks is None:
            tasks = [Task("default", "", split)]
        self.tasks = tasks if isinstance(tasks, TaskSet) else TaskSet(tasks)
        # The default split may be missing, as in tasks to evaluate on: `reset` then names the others.
        missing = split == "train" and split not in self.tasks.splits
        self.task = (self.tasks if missing else self.tasks.split(split))[0]
        self.split = split
        self.invalid_action_penalty = float(penalty)
        self.render_mode = render_mode

    def _choose_task(self, options: Mapping[str, Any], ignored: Sequence[str] = ()) -> Task:
        """Return the task that ``reset``'s options name, or one sampled from their split."""
        for name in options:
            if name not in ("task", "split", *ignored):
                hint = did_you_mean(str(name), ("task", "split"))
                raise ValueError(f"no option `{name}` of reset{hint}")
            if name in ("task", "split") and not isinstance(options[name], str | None):
                raise ValueError(f"the option `{name}` of reset must be a str, not {options[name]!r}")
        if options.get("task") is not None:
            return self.tasks.get(options["task"])
        split = options.get("split")
        return self.tasks.split(self.split if split is None else split).sample(self.np_random)

    begin: Callable[[Task], Any]

    def _begin(self, *names: str) -> Any:
        """What ``begin`` returns; it may not set an attribute that every environment has."""
        own = {name: vars(self).get(name) for name in self._fixed.union(("task", "tools", *names))}
        result = self.begin(self.task)
        for name, value in own.items():
            if vars(self).get(name) is not value:
                whose = f"{type(self).__name__}.begin sets self.{name}"
                raise TypeError(f"{whose}, which every environment has: choose another name")
        return result

    def _returned(self, name: str, value: Any, *kinds: type) -> Any:
        """What a method of the author's returned, which has to be of one of these types."""
        if not isinstance(value, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"{type(self).__name__}.{name} must return {wanted}, not {value!r}")
        return value

    def _penalty(self) -> dict[str, float]:
        """The score term of an invalid reply."""
        return {"invalid_action": -self.invalid_action_penalty} if self.invalid_action_penalty else {}


def check_names(cls: type[TaskEnv], tools: Iterable[str], base: type[TaskEnv], *attributes: str) -> None:
    """Refuse names of what every environment has.

    Raises:
        ToolDeclarationError: For a tool of such a name.
        TypeError: For a class attribute that ``__init__`` would hide, or ``shared`` as one text.
    """
    # Attributes that libraries set in `reset`, such as PettingZoo's `rewards`, are only annotated.
    annotated = {name for one in base.__mro__ for name in vars(one).get("__annotations__", ())}
    taken = annotated.union(dir(base), base._fixed, ("task", *attributes)).intersection(tools)
    if taken:
        raise ToolDeclarationError(
            f"tool `{min(taken)}` has the name of something that every environment has: rename the method"
        )
    own = {name for name, value in vars(cls).items() if not hasattr(value, "__set__")}  # no properties
    hidden = base._fixed.union(("task", "tools", *attributes)).intersection(own) - {"metadata"}
    if hidden:
        which = f"{cls.__name__}.{min(hidden)} has no effect: every instance sets its own"
        raise TypeError(f"{which}; give arguments to super().__init__, as in max_turns=4")
    if isinstance(cls.shared, str):
        raise TypeError(f"{cls.__name__}.shared must be a tuple of names, as in ({cls.shared!r},)")


def error_info(error: ParseError) -> dict[str, str]:
    """``info["error"]`` of an invalid reply."""
    return {"kind": str(error.kind), "message": error.message}


def turns_left(left: int) -> str:
    """The line that counts the last turns."""
    return f"\n({left} turn{'s' if left > 1 else ''} left)"


def only_first_call(extra_calls: int) -> str:
    """The note below the answer to a reply with several calls."""
    return f"(Only the first of {extra_calls + 1} calls was carried out.)"


def require_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise ``ValueError`` for an argument that is not one of the known values."""
    if value not in known:
        raise ValueError(f"{name} `{value}`{did_you_mean(str(value), known)}")


def require_count(name: str, value: Any) -> None:
    """Raise ``ValueError`` for an argument that is not a whole number of at least 1."""
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def env_name(env: Any) -> str:
    """The id of an environment, or the name of its class if it was made without one."""
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def add_terms(terms: dict[str, float], more: Mapping[str, float]) -> None:
    """Add score terms to others of the same names, in place."""
    for name, value in more.items():
        terms[name] = terms.get(name, 0.0) + float(value)


_HOW_TO_CALL = "Reply with one call of a tool, for example "


def system_text(instructions: str, tools: Mapping[str, Tool]) -> str:
    """The standing instructions: the author's, then the list of tools; empty without tools."""
    if not tools:
        return ""
    example = next(iter(tools.values())).example()
    lines = f"{_HOW_TO_CALL}{example}\nTools:\n{usage_lines(tools.values())}"
    return f"{instructions.strip()}\n\n{lines}" if instructions.strip() else lines


def without_tool_list(system: str) -> str:
    """The author's part of a :func:`system_text`, for models whose chat template lists the tools itself."""
    instructions, found, _ = system.rpartition(_HOW_TO_CALL)
    return instructions.rstrip() if found else system


def fit_text(text: str, limit: int = MAX_LENGTH) -> str:
    """Make a text fit its space: replace lone surrogates, and leave out the middle if it is too long."""
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    if len(text) <= limit:
        return text
    note = f"\n[… {len(text) - limit} characters left out …]\n"
    half = (limit - len(note)) // 2
    # A space too short for the note shows the end alone.
    return text[:half] + note + text[-half:] if half > 0 else text[-limit:]


class _Int(int):
    """A whole number that a vector environment keeps as an object.

    Gymnasium makes an array of ``int`` or ``float`` for the first number of a name, and another reply's
    ``None``, text or number of more than 64 bits, which does not fit into it, would raise in ``step``. There
    is no such class for ``bool``: beside one that came first, ``None`` reads ``False`` in the array.
    """


class _Float(float):
    """The same for a float."""


_OBJECTS: Mapping[type, Callable[[Any], Any]] = {int: _Int, float: _Float}


def jsonable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments with dates as text, and with numbers that a vector environment can keep."""
    return {name: _OBJECTS.get(type(value), plain)(value) for name, value in arguments.items()}


def _qualified_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
