"""``textworld/Game-v0``: text adventures of TextWorld, made by seed with held-out ones, or from files.

A file may also be one that Jericho plays (``.z3`` to ``.z8``): TextWorld starts those too.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from art_gym.base import Snapshot
from art_gym.baselines import Act, Baseline
from art_gym.tasks import Task
from art_gym.wrappers.adapters.common import FreeTextEnv, import_optional, split_tasks
from art_gym.wrappers.text_adapter import TextAdapter

SPLITS = {"train": 1000, "validation": 50, "test": 100}
"""How many made games each split has; each has a seed of its own."""

_BANNER_ENDS = "$$$"
_PROMPT = re.compile(r"\n*^>.*\Z", re.MULTILINE)


class TextWorldEnv(FreeTextEnv):
    """Games of TextWorld with Gymnasium's interface: ``options={"file": path}`` begins the game of a file.

    The reward is what the score rises by. ``info["possible"]`` lists the commands that do something now,
    if the game knows them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._library = import_optional("textworld", "textworld")
        self._unsupported = import_optional("jericho", "jericho").UnsupportedGameWarning
        self._game: Any = None
        self._score = 0.0
        self.possible: list[str] = []
        self.walkthrough: list[str] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a game."""
        if options is None:
            raise ValueError('name a game: reset(options={"file": path})')
        self.close()
        infos = self._library.EnvInfos(won=True, lost=True, admissible_commands=True, policy_commands=True)
        with warnings.catch_warnings():
            # Jericho warns of every game that is not of its own collection, and made ones are not.
            warnings.simplefilter("ignore", self._unsupported)
            self._game = self._library.start(str(options["file"]), request_infos=infos)
        if seed is not None:
            self._game.seed(seed)
        state = self._game.reset()
        self._score = 0.0
        self._notice(state)
        return _plain(state.feedback), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a command; of several lines the last one."""
        lines = [line.strip() for line in action.splitlines() if line.strip()]
        state, score, done = self._game.step(lines[-1] if lines else "look")
        reward = float(score) - self._score
        self._score = float(score)
        self._notice(state)
        won = {"success": bool(state.won)} if done else {}
        return _plain(state.feedback), reward, bool(done), False, won

    def close(self) -> None:
        """End the game's interpreter."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _notice(self, state: Any) -> None:
        self.possible = list(state.get("admissible_commands") or [])
        self.walkthrough = list(state.get("policy_commands") or [])


def _any_command(env: TextWorldTextEnv, rng: np.random.Generator) -> Act:
    def act(observation: str) -> str:
        commands = env.env.possible or ["look"]
        return str(commands[int(rng.integers(len(commands)))])

    return act


def _walkthrough(env: TextWorldTextEnv, rng: np.random.Generator) -> Act:
    return lambda observation: str((env.env.walkthrough or ["look"])[0])


class TextWorldTextEnv(TextAdapter):
    """Play text adventures of TextWorld.

    Without ``files``, games are made: one for each task, from the task's seed, when it is first played.

    Args:
        files: Game files instead, one task each; they are all in the split ``"train"``.
        rooms: Rooms of a made game.
        objects: Objects in it.
        quest_length: Commands that its quest needs.
        split: ``"train"``, ``"validation"`` or ``"test"``; no made game is in two of them.
        max_turns: Replies in an episode.
        render_mode: As in every ``TextEnv``.

    Raises:
        ModuleNotFoundError: If TextWorld is missing.
    """

    instructions: ClassVar[str] = (
        "You play a text adventure. Reply with one command alone, such as look, inventory, take key."
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {"random": _any_command}
    teachers: ClassVar[Mapping[str, Baseline]] = {"walkthrough": _walkthrough}

    def __init__(
        self,
        *,
        files: tuple[str, ...] | list[str] = (),
        rooms: int = 2,
        objects: int = 4,
        quest_length: int = 2,
        split: str = "train",
        max_turns: int = 20,
        render_mode: str | None = None,
    ) -> None:
        self._library = import_optional("textworld", "textworld")
        self._size = {"nb_rooms": rooms, "nb_objects": objects, "quest_length": quest_length}
        self._folder = tempfile.mkdtemp(prefix="textworld-")
        self._clean = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._files: dict[str, str] = {Path(file).stem: str(file) for file in files}
        super().__init__(
            TextWorldEnv(),
            instructions=self.instructions,
            tasks=[Task(name, "") for name in self._files]
            or split_tasks(SPLITS, lambda seed: {"game": seed}),
            split=split,
            max_turns=max_turns,
            render_mode=render_mode,
        )

    def restart(self, task: Task, seed: int) -> tuple[Any, dict[str, Any]]:
        """Begin the task's game, made now if it was not yet."""
        if task.id not in self._files:
            self._files[task.id] = self._make(task)
        begun: tuple[Any, dict[str, Any]] = self.env.reset(seed=seed, options={"file": self._files[task.id]})
        return begun

    def snapshot(self) -> Snapshot:
        """Not possible."""
        raise NotImplementedError("TextWorld's interpreter cannot be copied: reset with the seed and replay")

    def close(self) -> None:
        """End the game and delete the made ones."""
        super().close()
        self._clean()

    def _make(self, task: Task) -> str:
        options = self._library.GameOptions()
        for name, value in self._size.items():
            setattr(options, name, value)
        options.seeds = task.data["game"]
        options.path = str(Path(self._folder) / f"{task.id}.z8")
        file, _ = self._library.make(options)
        return str(file)


def _plain(text: str) -> str:
    """A game's text without the banner, the prompt and the status line."""
    text = text[text.rfind(_BANNER_ENDS) + len(_BANNER_ENDS) if _BANNER_ENDS in text else 0 :]
    lines = _PROMPT.sub("", text).strip().splitlines()
    kept = [
        line.strip()
        for line, before in zip(lines, ["x", *lines], strict=False)
        if line.strip() or before.strip()
    ]
    return "\n".join(kept)
