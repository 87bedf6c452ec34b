"""``babyai/Text-v0``: BabyAI's instructions and grid worlds (``minigrid``) as text.

Actions are named, and the view is described, as in BALROG's and BabyAI-Text's: what is seen, how many steps
ahead and to the side, one object a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym

from art_gym.tasks import Task
from art_gym.wrappers.adapters.common import import_optional, require_known
from art_gym.wrappers.text_adapter import EpisodeProgress, TextAdapter

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""In the order of MiniGrid's numbers; its last, "done", does nothing in BabyAI."""

_DOORS = ("open", "closed", "locked")
_SEEN_THROUGH = ("unseen", "empty", "floor")


class BabyAITextEnv(TextAdapter):
    """Carry out an instruction in a grid world that is described in text.

    Args:
        level: BabyAI's id, such as ``"BabyAI-GoToLocal-v0"``.
        max_turns: Replies in an episode; by default as many as the level gives.
        invalid_reward: As in :class:`~art_gym.wrappers.TextAdapter`.
        render_mode: As in every ``TextEnv``.
        arguments: The level's own.

    Raises:
        ModuleNotFoundError: If MiniGrid is missing.
        ValueError: If it has no such level.
    """

    instructions: ClassVar[str] = (
        "You walk through rooms and carry out a mission. You see what lies ahead of you, one thing a line. "
        "Reply with the action alone: turn left, turn right, go forward, pick up, drop or toggle, which "
        "opens what is right before you."
    )

    def __init__(
        self,
        level: str = "BabyAI-GoToLocal-v0",
        *,
        max_turns: int | None = None,
        invalid_reward: float = -0.1,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        import_optional("minigrid", "minigrid")
        self._objects = import_optional("minigrid.core.constants", "minigrid").IDX_TO_OBJECT
        self._colors = import_optional("minigrid.core.constants", "minigrid").IDX_TO_COLOR
        levels = [name for name in gym.registry if name.startswith("BabyAI-")]
        require_known("MiniGrid", "level", level, levels)
        env = gym.make(level, disable_env_checker=True, **arguments)
        super().__init__(
            env,
            actions={name: number for number, name in enumerate(ACTIONS)},
            max_turns=max_turns,
            invalid_reward=invalid_reward,
            success=_carried_out,
            render_mode=render_mode,
        )

        self._level_limit = max_turns is None

    def restart(self, task: Task, seed: int) -> tuple[Any, dict[str, Any]]:
        """Begin a mission; how many steps it may take can differ from mission to mission."""
        begun = super().restart(task, seed)
        if self._level_limit:
            self.max_turns = int(self.env.unwrapped.max_steps)
        return begun

    def describe(self, observation: Mapping[str, Any]) -> str:
        """The mission, what is carried and what is in view."""
        image = observation["image"]
        width, depth = image.shape[:2]
        carried = self.env.unwrapped.carrying
        lines = [f"mission: {observation['mission']}"]
        if carried is not None:
            lines.append(f"you carry a {carried.color} {carried.type}")
        for ahead in range(depth):
            for column in range(width):
                # The view's last row is the agent's own, and the agent stands in its middle.
                seen = self._object(image[column, depth - 1 - ahead])
                own_place = not ahead and column == width // 2
                if seen and not own_place:
                    lines.append(f"{seen} {_where(ahead, column - width // 2)}")
        lines += self._walls(image)
        return "\n".join(lines)

    def _object(self, cell: Any) -> str:
        """An object as text; empty for walls and for what is not described."""
        kind, color, state = (int(part) for part in cell)
        name = self._objects[kind]
        if name in _SEEN_THROUGH or name == "wall":
            return ""
        door = f"{_DOORS[state]} " if name == "door" else ""
        return f"a {door}{self._colors[color]} {name}"

    def _walls(self, image: Any) -> list[str]:
        """The nearest wall ahead and to each side."""
        width, depth = image.shape[:2]
        here, row = width // 2, depth - 1
        ways = {
            "forward": [image[here, row - step] for step in range(1, depth)],
            "left": [image[here - step, row] for step in range(1, here + 1)],
            "right": [image[here + step, row] for step in range(1, width - here)],
        }
        found = []
        for way, cells in ways.items():
            walls = [step for step, cell in enumerate(cells, 1) if self._objects[int(cell[0])] == "wall"]
            if walls:
                found.append(f"a wall {_steps(walls[0])} {way}")
        return found


def _where(ahead: int, right: int) -> str:
    parts = [f"{_steps(ahead)} forward"] if ahead else []
    if right:
        parts.append(f"{_steps(abs(right))} {'right' if right > 0 else 'left'}")
    return " and ".join(parts)


def _steps(count: int) -> str:
    return f"{count} step{'s' if count > 1 else ''}"


def _carried_out(played: EpisodeProgress) -> bool:
    return played.terminated and played.env_return > 0
