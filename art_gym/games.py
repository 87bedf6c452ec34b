"""``TextAECEnv``: games in text for several seats, on PettingZoo's AEC interface (one agent acts at a time).

It is to PettingZoo what :class:`art_gym.TextEnv` is to Gymnasium. The author of a game writes how it begins,
what each seat sees, and the tools; parsing, bad replies, turn limits, ``infos`` and seeds lie here.

Importing this module registers the project's games with PettingZoo::

    import art_gym.games
    import pettingzoo

    env = pettingzoo.make("aec", "art/2048Duel-v0")

PettingZoo is optional: ``pip install "art-gym[pettingzoo]"``. (This module is not called ``pettingzoo``: a
script run from this folder would find it in place of the library.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import seeding
from numpy.typing import NDArray

from art_gym.env import Baseline, jsonable, system_text
from art_gym.errors import ResetNeeded, ToolError, did_you_mean
from art_gym.game_pieces import Ply, add_terms, fitting, read_choices, require_choice, seat, seat_tools
from art_gym.game_registration import register_games
from art_gym.parser import Call, Invalid, parse
from art_gym.snapshots import Restorable
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task, TaskSet
from art_gym.tools import Tool

try:
    import pettingzoo  # type: ignore[import-untyped]
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'art_gym.games needs PettingZoo, which is not installed: pip install "art-gym[pettingzoo]"',
        name=missing.name,
    ) from missing

__all__ = ["Ply", "TextAECEnv", "seat"]

# PettingZoo's api_test calls reset(options={"options": 1}); it means nothing.
_OPTIONS = ("task", "split", "options")
_WARN_AT = 2  # how many turns before the last one a seat's observation begins to count them
# Attributes that never change after construction, so that a snapshot need not hold them.
_FIXED = frozenset(
    {"tasks", "split", "actions", "max_cycles", "patience", "invalid_action_penalty", "render_mode"}
    | {"possible_agents", "observation_spaces", "action_spaces", "_choices", "_calls"}
)


class TextAECEnv(Restorable, pettingzoo.AECEnv):  # type: ignore[misc]  # PettingZoo has no type hints
    """A game in text.

    A subclass names its ``seats`` and implements :meth:`begin`, :meth:`view` and for each seat a tool that
    returns a :class:`Ply`; inside a tool ``self.agent_selection`` is the seat that moves. A game whose moves
    can be listed implements :meth:`choices` and :meth:`legal_choices` too, and one that can be seen as
    numbers :meth:`array_space` and :meth:`array`. Class attributes it may set:

    * ``instructions``: standing instructions by seat, shown above the list of its tools.
    * ``players``: scripted players by seat and name; ``player(env, rng)`` gives ``act(text) -> reply``.
    * ``shared``: names of attributes set in ``__init__`` that never change; snapshots share them.

    A seat's observation is a dictionary: ``"text"``, the words of its last observation on; ``"observation"``,
    the array, where there is one; with ``actions="discrete"`` also ``"action_mask"``, int8, all zero for a
    seat that is not to move. Its ``infos`` are those of a ``TextEnv``: ``task_id``, ``turn`` (its own
    replies), ``call`` or ``error`` of its latest reply, ``score_terms`` (named parts of its reward since
    then), at the end ``success`` and ``metrics``; before its first reply also ``tools`` and ``system``.

    A bad reply is answered in words and costs, and the seat is asked again. After ``patience`` of them in a
    row a legal choice is drawn for it, so that no seat can keep the other from playing.

    Args:
        tasks: What can be played; without any the game has one task and differs by seed alone.
        split: The split that ``reset`` samples from.
        actions: What the action spaces declare: ``"text"``, or ``"discrete"``, numbers into :meth:`choices`.
            ``step`` takes either all the same, so that a model may play a trained network.
        max_cycles: The game is truncated when a seat that has replied so often would be to move again.
        patience: Bad replies in a row before a choice is drawn; ``None``: never. Without effect for a seat
            whose moves cannot be listed.
        invalid_action_penalty: Subtracted from the reward of a seat for a reply that is no valid call.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.

    Raises:
        ValueError: For arguments out of range.
        UnknownTask: Where ``split`` is not one of the tasks' splits.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (PettingZoo's own)
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    seats: ClassVar[tuple[str, ...]] = ()
    instructions: ClassVar[Mapping[str, str]] = {}
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = {}
    _fixed: ClassVar[frozenset[str]] = _FIXED
    tools: ClassVar[Mapping[str, Mapping[str, Tool]]] = {}
    systems: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.metadata = {"name": cls.__name__, **cls.metadata}
        cls.tools = seat_tools(cls, cls.seats)
        cls.systems = {
            name: system_text(cls.instructions.get(name, ""), tools) for name, tools in cls.tools.items()
        }

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
        if render_mode is not None:
            require_choice("render_mode", render_mode, self.metadata["render_modes"])
        if max_cycles < 1:
            raise ValueError(f"max_cycles must be at least 1, not {max_cycles}")
        if patience is not None and patience < 1:
            raise ValueError(f"patience must be at least 1, or None, not {patience}")
        if not 0 <= invalid_action_penalty < float("inf"):
            raise ValueError(f"invalid_action_penalty must be 0 or more, not {invalid_action_penalty}")
        if tasks is None:
            tasks = [Task("default", "", split)]
        self.tasks = tasks if isinstance(tasks, TaskSet) else TaskSet(tasks)
        self.task = self.tasks.split(split)[0]
        self.split = split
        self.actions = actions
        self.max_cycles = max_cycles
        self.patience = patience
        self.invalid_action_penalty = float(invalid_action_penalty)
        self.render_mode = render_mode
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
        """Set the game up, with chance from ``self.np_random`` alone.

        Returns:
            The seat that moves first; ``None`` for the first of ``seats``.
        """
        raise NotImplementedError

    def view(self, name: str) -> str:
        """The game in words as a seat sees it now; it stands below what the seat was told."""
        raise NotImplementedError

    def on_truncation(self) -> Ply:
        """What is added to the last ply when the turn limit cuts the game off."""
        return Ply(dict.fromkeys(self.seats, "No turns are left."))

    def choices(self, name: str) -> Sequence[str]:
        """The replies that a seat may ever give, where they can be listed: discrete action i is the i-th."""
        return ()

    def legal_choices(self, name: str) -> Sequence[bool]:
        """Which of a seat's choices are legal now, were it to move."""
        return [True] * len(self._choices[name])

    def array_space(self, name: str) -> Space[Any] | None:
        """The space of :meth:`array`; ``None`` where a seat sees words alone."""
        return None

    def array(self, name: str) -> NDArray[Any]:
        """The game as a seat sees it, as numbers."""
        raise NotImplementedError

    def picture(self) -> str:
        """The game in words for a spectator."""
        return self.view(self.agent_selection)

    def observation_space(self, agent: str) -> Space[Any]:
        """A seat's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """A seat's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game.

        Args:
            seed: The same seed gives the same task and the same game.
            options: ``{"task": id}`` chooses a task, ``{"split": name}`` the split to sample from.

        Raises:
            UnknownTask: For a task or split that does not exist.
            ValueError: For any other option.
        """
        if seed is not None:
            self.np_random, _ = seeding.np_random(seed)
        self.task = self._choose_task(options or {})
        self._ended = False
        self.agents = list(self.seats)
        self.turns = dict.fromkeys(self.seats, 0)
        self.rewards = dict.fromkeys(self.seats, 0.0)
        self.terminations = dict.fromkeys(self.seats, False)
        self.truncations = dict.fromkeys(self.seats, False)
        self._cumulative_rewards = dict.fromkeys(self.seats, 0.0)
        self._skip_agent_selection = None  # PettingZoo's, of a game that was left at its end
        self._news: dict[str, list[str]] = {name: [] for name in self.seats}
        self._terms: dict[str, dict[str, float]] = {name: {} for name in self.seats}
        self._invalid = dict.fromkeys(self.seats, 0)
        self._in_a_row = dict.fromkeys(self.seats, 0)
        self.agent_selection = self.begin(self.task) or self.seats[0]
        self.infos = {
            name: {
                "task_id": self.task.id,
                "turn": 0,
                "tools": [item.schema() for item in self.tools[name].values()],
                "system": self.systems[name],
            }
            for name in self.seats
        }
        self._show("")

    def observe(self, agent: str) -> dict[str, Any]:
        """What a seat can see now.

        Raises:
            ResetNeeded: Before ``reset``.
        """
        if not self.turns:
            raise ResetNeeded("call reset() first: no game is running")
        found: dict[str, Any] = {"text": self._text(agent)}
        if "observation" in self.observation_spaces[agent].spaces:
            found["observation"] = self.array(agent)
        if self.actions == "discrete":
            to_move = agent == self.agent_selection and not self._ended
            legal = self.legal_choices(agent) if to_move else [False] * len(self._choices[agent])
            found["action_mask"] = np.asarray(legal, dtype=np.int8)
        return found

    def step(self, action: str | int | np.integer[Any] | None) -> None:
        """Let the seat to move reply: with its whole reply, or with the number of one of its choices.

        Whatever a reply says, it is answered in words; only a bug in a game raises.

        Raises:
            ResetNeeded: Before ``reset`` or after the game's end.
            TypeError: Where the action is neither text nor a whole number, nor ``None`` at the game's end.
            ValueError: Where there is no choice of that number.
        """
        if not self.agents:
            raise ResetNeeded("call reset() first: no game is running")
        name = self.agent_selection
        if self._ended:
            self._was_dead_step(action)
            return
        read = self._read(name, action)
        self._clear_rewards()
        self._cumulative_rewards[name] = 0.0
        self._terms[name], self._news[name] = {}, []
        self.turns[name] += 1
        ply, told = self._take(name, read)
        self.infos[name] = {"task_id": self.task.id, "turn": self.turns[name], **told}
        self._apply(name, ply)
        self._show(f"{name}: {action}")

    def render(self) -> Any:
        """The game as a spectator sees it: text in ``"ansi"`` mode, ``None`` otherwise."""
        return self.picture() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, name: str, action: object) -> Call | Invalid:
        if isinstance(action, str):
            return parse(action, self.tools[name])
        if isinstance(action, bool) or not isinstance(action, int | np.integer):
            raise TypeError(f"an action is a reply or the number of a choice, not {type(action).__name__}")
        if not 0 <= action < len(self._calls[name]):
            raise ValueError(f"{name} has {len(self._calls[name])} choices, so none of number {action}")
        return self._calls[name][int(action)]

    def _take(self, name: str, read: Call | Invalid) -> tuple[Ply, dict[str, Any]]:
        """Carry a call out, or answer why not; the second part is what ``infos`` tells about the reply."""
        result = read if isinstance(read, Invalid) else self._carry_out(read)
        if isinstance(result, Ply) and isinstance(read, Call):
            self._in_a_row[name] = 0
            if read.extra_calls:
                note = f"(Only the first of {read.extra_calls + 1} calls was carried out.)"
                result = result.after(Ply({name: note}))
            return result, {"call": {"name": read.name, "arguments": jsonable(read.arguments)}}
        assert isinstance(result, Invalid)
        told = {"error": {"kind": str(result.kind), "message": result.message}}
        return self._refuse(name, result), told

    def _carry_out(self, call: Call) -> Ply | Invalid:
        try:
            ply = getattr(self, call.name)(**call.arguments)
        except ToolError as refusal:
            return Invalid("refused", str(refusal))
        if not isinstance(ply, Ply):
            raise TypeError(f"a game's tool returns a Ply, but `{call.name}` returned {type(ply).__name__}")
        return ply

    def _refuse(self, name: str, invalid: Invalid) -> Ply:
        """Charge for a bad reply; when the patience is at an end, draw a choice for the seat."""
        self._invalid[name] += 1
        self._in_a_row[name] += 1
        penalty = {"invalid_action": -self.invalid_action_penalty} if self.invalid_action_penalty else {}
        refused = Ply({name: invalid.message}, {name: penalty}, next=name)
        legal = np.flatnonzero(self.legal_choices(name))
        if self.patience is None or self._in_a_row[name] < self.patience or not legal.size:
            return refused
        self._in_a_row[name] = 0
        drawn = int(legal[self.np_random.integers(legal.size)])
        reply = self._choices[name][drawn]
        played = self._carry_out(self._calls[name][drawn])
        assert isinstance(played, Ply), f"{name} may reply {reply!r}, yet it was refused"
        note = Ply({name: f"`{reply}` was played for you after {self.patience} bad replies in a row."})
        return played.after(note.after(refused))

    def _apply(self, name: str, ply: Ply) -> None:
        """Hand out words and rewards, pass the turn on, and end the game where it ends."""
        upcoming = ply.next or self.seats[(self.seats.index(name) + 1) % len(self.seats)]
        terminated = ply.ends
        truncated = not terminated and self.turns[upcoming] >= self.max_cycles
        if truncated:
            ply = self.on_truncation().after(ply)
        for other, told in ply.words.items():
            self._news[other].append(told)
        for other, terms in ply.score_terms.items():
            add_terms(self._terms[other], terms)
            self.rewards[other] = sum(map(float, terms.values()), 0.0)
        self._accumulate_rewards()
        self._ended = terminated or truncated
        for other in self.seats:
            self.infos[other] = {**self.infos[other], "score_terms": dict(self._terms[other])}
            if self._ended:
                counts = {"turns": self.turns[other], "invalid_actions": self._invalid[other]}
                self.infos[other]["success"] = other in ply.success
                self.infos[other]["metrics"] = {
                    key: float(value) for key, value in {**counts, **ply.metrics}.items()
                }
        self.terminations = dict.fromkeys(self.seats, terminated)
        self.truncations = dict.fromkeys(self.seats, truncated)
        self.agent_selection = upcoming

    def _text(self, name: str) -> str:
        body = "\n".join([*self._news[name], self.view(name)])
        left = self.max_cycles - self.turns[name]
        if 0 < left <= _WARN_AT and not self._ended:
            body += f"\n({left} turn{'s' if left > 1 else ''} left)"
        return fitting(body if self.turns[name] else f"{self.systems[name]}\n\n{body}")

    def _choose_task(self, options: Mapping[str, Any]) -> Task:
        for option in options:
            if option not in _OPTIONS:
                raise ValueError(f"no option `{option}` of reset{did_you_mean(str(option), _OPTIONS[:2])}")
        if options.get("task") is not None:
            return self.tasks.get(options["task"])
        split = options.get("split")
        return self.tasks.split(self.split if split is None else split).sample(self.np_random)

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

    def _show(self, said: str) -> None:
        if self.render_mode == "human":
            print(f"> {said}\n{self.picture()}" if said else self.picture())


register_games()
