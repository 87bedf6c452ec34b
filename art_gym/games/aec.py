"""``TextAECEnv``: games in text for several seats, on PettingZoo's AEC interface (one agent acts at a time).

It is to PettingZoo what :class:`art_gym.TextEnv` is to Gymnasium. The author of a game writes how it begins,
what each seat sees, and the tools; parsing, bad replies, turn limits, ``infos`` and seeds lie here.

Importing this module registers the project's games with PettingZoo::

    import art_gym.games.aec
    import pettingzoo

    env = pettingzoo.make("aec", "art/2048Duel-v0")

PettingZoo is optional: ``pip install "art-gym[pettingzoo]"``. (This module is not called ``pettingzoo``: a
script run from this folder would find it in place of the library.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import seeding
from numpy.typing import NDArray

from art_gym.base import (
    WARN_AT,
    TaskEnv,
    add_terms,
    check_names,
    error_info,
    fit_text,
    jsonable,
    only_first_call,
    require_choice,
    require_count,
    system_text,
    turns_left,
)
from art_gym.baselines import Baseline
from art_gym.errors import ResetNeededError, ToolError, did_you_mean
from art_gym.games.moves import MoveResult, read_choices, seat, seat_tools
from art_gym.parsing.parser import Call, ParseError, parse
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task
from art_gym.terminal import exchange, visible
from art_gym.tools import Tool

try:
    import pettingzoo  # type: ignore[import-untyped]
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'art_gym.games.aec needs PettingZoo, which is not installed: pip install "art-gym[pettingzoo]"',
        name=missing.name,
    ) from missing

__all__ = ["MoveResult", "TextAECEnv", "seat"]


class TextAECEnv(TaskEnv, pettingzoo.AECEnv):  # type: ignore[misc]  # PettingZoo has no type hints
    """A game in text.

    A subclass names its ``seats`` and implements :meth:`begin`, :meth:`view` and, for each seat, a tool that
    returns a :class:`MoveResult`. Inside a tool, ``self.agent_selection`` is the seat that moves. A game
    whose moves can be listed also implements :meth:`choices` and :meth:`legal_choices`; a game that can be
    seen as numbers also implements :meth:`array_space` and :meth:`array`. Class attributes it may set:

    * ``instructions``: standing instructions by seat, shown above the list of its tools.
    * ``players``: scripted players by seat and name; ``player(env, rng)`` gives ``act(text) -> reply``.
    * ``shared``: names of attributes set in ``__init__`` that never change; snapshots share them.

    A seat's observation is a dictionary: ``"text"``, what happened since its last observation;
    ``"observation"``, the array, if there is one; with ``actions="discrete"`` also ``"action_mask"``, int8,
    all zero for a seat that is not to move. Its ``infos`` are those of a ``TextEnv``: ``task_id``, ``turn``
    (its own replies), ``call`` or ``error`` of its latest reply, ``score_terms`` (named parts of its reward
    since then), at the end ``success`` and ``metrics``; before its first reply also ``tools`` and ``system``.

    An invalid reply gets an error message and a penalty, and the seat moves again. After ``patience`` invalid
    replies in a row a legal choice is sampled for it, so that no seat can block the game.

    Args:
        tasks: What can be played; without any the game has one task and differs by seed alone.
        split: The split that ``reset`` samples from.
        actions: What the action spaces declare: ``"text"``, or ``"discrete"``, numbers into :meth:`choices`.
            ``step`` takes either all the same, so that a model may play a trained network.
        max_cycles: The game is truncated when a seat that has replied so often would be to move again.
        patience: Invalid replies in a row before a choice is sampled; ``None``: never. It has no effect for a
            seat whose moves cannot be listed.
        invalid_action_penalty: Subtracted from the reward of a seat for a reply that is no valid call.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.

    Raises:
        ValueError: For arguments out of range.
        UnknownTaskError: If ``split`` is not one of the tasks' splits.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (PettingZoo's own)
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    seats: ClassVar[tuple[str, ...]] = ()
    instructions: ClassVar[Mapping[str, str]] = {}
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = {}
    # Attributes that never change after construction, so that a snapshot need not hold them.
    _fixed: ClassVar[frozenset[str]] = frozenset(
        {"tasks", "split", "actions", "max_cycles", "patience", "invalid_action_penalty", "render_mode"}
        | {"possible_agents", "observation_spaces", "action_spaces", "_choices", "_calls"}
    )
    tools: ClassVar[Mapping[str, Mapping[str, Tool]]] = {}
    systems: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.metadata = {"name": cls.__name__, **cls.metadata}
        tools = seat_tools(cls, cls.seats)
        check_names(cls, {name for own in tools.values() for name in own}, TextAECEnv, "turns", "systems")
        cls.tools = tools
        if not isinstance(cls.instructions, Mapping) or not set(cls.seats).issuperset(cls.instructions):
            by_seat = f"texts by seat ({', '.join(cls.seats)})"
            raise TypeError(f"{cls.__name__}.instructions must be {by_seat}, not {cls.instructions!r:.80}")
        cls.systems = {name: system_text(cls.instructions.get(name, ""), own) for name, own in tools.items()}

    def __init__(
        self,
        tasks: Iterable[Task] | None = None,
        *,
        split: str = "train",
        actions: str = "text",
        max_cycles: int = 1000,
        patience: int | None = 3,
        invalid_action_penalty: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        super().__init__()
        require_choice("actions", actions, ("text", "discrete"))
        require_count("max_cycles", max_cycles)
        if patience is not None:
            require_count("patience", patience)
        self._configure(tasks, split, invalid_action_penalty, render_mode)
        self.actions = actions
        self.max_cycles = max_cycles
        self.patience = patience
        self.np_random, _ = seeding.np_random()
        self.possible_agents = list(self.seats)
        self.agents: list[str] = []
        self.turns: dict[str, int] = {}
        self.agent_selection = self.seats[0]
        self._ended = False
        self._choices = {name: tuple(self.choices(name)) for name in self.seats}
        self._calls = {name: read_choices(self._choices[name], self.tools[name]) for name in self.seats}
        self.observation_spaces = {name: self._observation_space(name) for name in self.seats}
        self.action_spaces = {name: self._action_space(name) for name in self.seats}

    def begin(self, task: Task) -> str | None:
        """Set up the game; draw all random numbers from ``self.np_random``.

        Returns:
            The seat that moves first; ``None`` for the first of ``seats``.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define begin")

    def view(self, name: str) -> str:
        """Return the game as text from a seat's view; it is shown below the seat's messages."""
        raise NotImplementedError(f"{type(self).__name__} has to define view")

    def on_truncation(self) -> MoveResult:
        """Return what is added to the last move if the turn limit ends the game."""
        return MoveResult(dict.fromkeys(self.seats, "No turns are left."))

    def choices(self, name: str) -> Sequence[str]:
        """Return all possible replies of a seat, if they can be listed: discrete action i is the i-th."""
        return ()

    def legal_choices(self, name: str) -> Sequence[bool]:
        """Return which of a seat's choices are legal now."""
        return [True] * len(self._choices[name])

    def array_space(self, name: str) -> Space[Any] | None:
        """Return the space of :meth:`array`; ``None`` if seats see text only."""
        return None

    def array(self, name: str) -> NDArray[Any]:
        """Return the game from a seat's view, as an array."""
        raise NotImplementedError

    def picture(self) -> str:
        """Return the game as text for a spectator."""
        return self.view(self.agent_selection)

    def observation_space(self, agent: str) -> Space[Any]:
        """Return a seat's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """Return a seat's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game.

        Args:
            seed: The same seed gives the same task and the same game.
            options: ``{"task": id}`` chooses a task, ``{"split": name}`` the split to sample from.

        Raises:
            UnknownTaskError: For a task or split that does not exist.
            ValueError: For any other option.
        """
        if seed is not None:
            self.np_random, _ = seeding.np_random(seed)
        # PettingZoo's api_test calls reset(options={"options": 1}), which means nothing.
        self.task = self._choose_task(options or {}, ignored=("options",))
        self._ended = False
        self.agents = list(self.seats)
        self.turns = dict.fromkeys(self.seats, 0)
        self.rewards = dict.fromkeys(self.seats, 0.0)
        self.terminations = dict.fromkeys(self.seats, False)
        self.truncations = dict.fromkeys(self.seats, False)
        self._cumulative_rewards = dict.fromkeys(self.seats, 0.0)
        self._skip_agent_selection = None  # PettingZoo's, of a game that was left at its end
        self._messages: dict[str, list[str]] = {name: [] for name in self.seats}
        self._terms: dict[str, dict[str, float]] = {name: {} for name in self.seats}
        self._invalid = dict.fromkeys(self.seats, 0)
        self._in_a_row = dict.fromkeys(self.seats, 0)
        self.agent_selection = self._begin("turns", "rewards", "agents") or self.seats[0]
        self._check_seats(self.agent_selection)
        self.infos = {
            name: {
                "task_id": self.task.id,
                "turn": 0,
                "tools": [item.schema() for item in self.tools[name].values()],
                "system": self.systems[name],
            }
            for name in self.seats
        }
        self._render_human("")

    def observe(self, agent: str) -> dict[str, Any]:
        """Return a seat's observation.

        Raises:
            ResetNeededError: Before ``reset``.
        """
        if not self.turns:
            raise ResetNeededError("call reset() first: no game is running")
        found: dict[str, Any] = {"text": self._text(agent)}
        if "observation" in self.observation_spaces[agent].spaces:
            found["observation"] = self.array(agent)
        if self.actions == "discrete":
            to_move = agent == self.agent_selection and not self._ended
            legal = self.legal_choices(agent) if to_move else [False] * len(self._choices[agent])
            found["action_mask"] = np.asarray(legal, dtype=np.int8)
        return found

    def step(self, action: str | int | np.integer[Any] | None) -> None:
        """Step with a reply of the seat to move: its whole text, or the number of one of its choices.

        An invalid reply gets an error message; only a bug in a game raises.

        Raises:
            ResetNeededError: Before ``reset`` or after the game's end.
            TypeError: If the action is neither text nor a whole number, nor ``None`` at the game's end.
            ValueError: If there is no choice of that number.
        """
        if not self.agents:
            raise ResetNeededError("call reset() first: no game is running")
        name = self.agent_selection
        if self._ended:
            self._was_dead_step(action)
            return
        read = self._read(name, action)
        self._clear_rewards()
        self._cumulative_rewards[name] = 0.0
        self._terms[name], self._messages[name] = {}, []
        self.turns[name] += 1
        result, outcome = self._take(name, read)
        self.infos[name] = {"task_id": self.task.id, "turn": self.turns[name], **outcome}
        self._apply(name, result)
        self._render_human(f"{name}: {action}")

    def render(self) -> Any:
        """Return the game as a spectator sees it: text in ``"ansi"`` mode, else ``None``."""
        return visible(self.picture()) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _read(self, name: str, action: object) -> Call | ParseError:
        if isinstance(action, str):
            return parse(action, self.tools[name])
        if isinstance(action, bool) or not isinstance(action, int | np.integer):
            raise TypeError(f"an action is a reply or the number of a choice, not {type(action).__name__}")
        if not 0 <= action < len(self._calls[name]):
            raise ValueError(f"{name} has {len(self._calls[name])} choices, so none of number {action}")
        return self._calls[name][int(action)]

    def _take(self, name: str, read: Call | ParseError) -> tuple[MoveResult, dict[str, Any]]:
        """Execute a call or reject an invalid reply; the second value goes into ``infos``."""
        if isinstance(read, ParseError):
            return self._reject(name, read), {"error": error_info(read)}
        try:
            result = self._call_tool(read)
        except ToolError as refusal:
            error = ParseError("refused", str(refusal))
            return self._reject(name, error), {"error": error_info(error)}
        self._in_a_row[name] = 0
        if read.extra_calls:
            result = result.after(MoveResult({name: only_first_call(read.extra_calls)}))
        return result, {"call": {"name": read.name, "arguments": jsonable(read.arguments)}}

    def _call_tool(self, call: Call) -> MoveResult:
        result = getattr(type(self), call.name)(self, **call.arguments)
        return cast(MoveResult, self._returned(call.name, result, MoveResult))

    def _reject(self, name: str, error: ParseError) -> MoveResult:
        """Penalise an invalid reply; after ``patience`` of them, sample a legal choice for the seat."""
        self._invalid[name] += 1
        self._in_a_row[name] += 1
        rejected = MoveResult({name: error.message}, {name: self._penalty()}, next=name)
        legal = np.flatnonzero(self.legal_choices(name))
        if self.patience is None or self._in_a_row[name] < self.patience or not legal.size:
            return rejected
        self._in_a_row[name] = 0
        drawn = int(legal[self.np_random.integers(legal.size)])
        reply = self._choices[name][drawn]
        note = f"`{reply}` was played for you after {self.patience} bad replies in a row."
        return self._call_tool(self._calls[name][drawn]).after(MoveResult({name: note}).after(rejected))

    def _apply(self, name: str, result: MoveResult) -> None:
        """Distribute messages and rewards, pass the turn, and end the game if it is over."""
        upcoming = result.next or self.seats[(self.seats.index(name) + 1) % len(self.seats)]
        self._check_seats(*result.messages, *result.score_terms, *result.success, upcoming)
        terminated = result.ends
        truncated = not terminated and self.turns[upcoming] >= self.max_cycles
        if truncated:
            result = self._returned("on_truncation", self.on_truncation(), MoveResult).after(result)
        for other, message in result.messages.items():
            self._messages[other].append(message)
        for other, terms in result.score_terms.items():
            add_terms(self._terms[other], terms)
            self.rewards[other] = sum(map(float, terms.values()), 0.0)
        self._accumulate_rewards()
        self._ended = terminated or truncated
        for other in self.seats:
            self.infos[other] = {**self.infos[other], "score_terms": dict(self._terms[other])}
            if self._ended:
                counts = {"turns": self.turns[other], "invalid_actions": self._invalid[other]}
                self.infos[other]["success"] = other in result.success
                self.infos[other]["metrics"] = {
                    key: float(value) for key, value in {**counts, **result.metrics}.items()
                }
        self.terminations = dict.fromkeys(self.seats, terminated)
        self.truncations = dict.fromkeys(self.seats, truncated)
        self.agent_selection = upcoming

    def _check_seats(self, *names: str) -> None:
        for name in names:
            if name not in self.seats:
                unknown = f"{type(self).__name__} has no seat `{name}`"
                raise ValueError(f"{unknown}{did_you_mean(str(name), self.seats)}")

    def _text(self, name: str) -> str:
        body = "\n".join([*self._messages[name], self._returned("view", self.view(name), str)])
        left = self.max_cycles - self.turns[name]
        if 0 < left <= WARN_AT and not self._ended:
            body += turns_left(left)
        return fit_text(body if self.turns[name] else f"{self.systems[name]}\n\n{body}")

    def _observation_space(self, name: str) -> spaces.Dict:
        parts: dict[str, Space[Any]] = {"text": UnicodeText()}
        array_space = self.array_space(name)
        if array_space is not None:
            parts["observation"] = array_space
        if self.actions == "discrete":
            parts["action_mask"] = spaces.Box(0, 1, (len(self._choices[name]),), np.int8)
        return spaces.Dict(parts)

    def _action_space(self, name: str) -> Space[Any]:
        if self.actions == "text":
            return UnicodeText()
        if not self._choices[name]:
            raise ValueError(f"the moves of {name} cannot be listed: make the game with actions='text'")
        return spaces.Discrete(len(self._choices[name]))

    def _render_human(self, action: str) -> None:
        if self.render_mode == "human":
            print(exchange(action, self.picture()))
