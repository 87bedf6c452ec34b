"""``art/2048Duel-v0``: 2048 for two, one slides and the other places the tiles, on PettingZoo's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from art_gym.baselines import Act, Baseline
from art_gym.envs.game_2048 import rendering
from art_gym.envs.game_2048.options import check_target
from art_gym.envs.game_2048.players import BASELINES
from art_gym.envs.game_2048.rendering import observation
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules
from art_gym.envs.game_2048.rules.tile_rng import TileRng
from art_gym.errors import ToolError
from art_gym.games.aec import MoveResult, TextAECEnv, seat
from art_gym.tasks import Task
from art_gym.tools import tool

SLIDER = "slider_0"
PLACER = "placer_1"


# --- scripted policies: each is ``player(env, rng) -> act``, and ``act(text)`` gives the next reply


def random_cell(env: Duel2048Env, rng: np.random.Generator) -> Act:
    """Any empty cell, each equally likely: the ordinary game."""

    def act(observation: str) -> str:
        empty = [cell for cell, exponent in enumerate(env.exponents, 1) if not exponent]
        return str(empty[int(rng.integers(len(empty)))])

    return act


def worst_cell(env: Duel2048Env, rng: np.random.Generator) -> Act:
    """The cell that leaves the slider the fewest legal moves; of equal ones the fewest points, then any."""

    def act(observation: str) -> str:
        empty = [cell for cell, exponent in enumerate(env.exponents) if not exponent]
        left = [_options(env, cell) for cell in empty]
        worst = [cell for cell, options in zip(empty, left, strict=True) if options == min(left)]
        return str(worst[int(rng.integers(len(worst)))] + 1)

    return act


def _options(env: Duel2048Env, cell: int) -> tuple[int, int]:
    """What the slider could do with the tile in this cell: its legal moves, and the most points of one."""
    board = env.rules.place(env.board, cell, env.tile)
    points = (env.rules.slide(board, action)[1] for action in range(len(ACTIONS)))
    return sum(env.rules.legal(board)), max(points)


SLIDERS: Mapping[str, Baseline] = {
    name: BASELINES[name] for name in ("random", "left-down-right-down", "greedy")
}
PLACERS: Mapping[str, Baseline] = {"random": random_cell, "worst": worst_cell}


class Duel2048Env(TextAECEnv):
    """2048 as a duel: one slides for points, the other puts each new tile where it hurts most.

    ## Description
    The seats take turns. ``slider_0`` makes a move of 2048. Then chance draws the new tile, a 2 with
    probability 0.9, else a 4, and ``placer_1``, who sees it, chooses the empty cell it goes into. With a
    placer that chooses at random this is the ordinary game.

    ## Action Space
    Text. The slider replies ``left``, ``right``, ``up`` or ``down`` (or a call of ``move``), the placer with
    the number of an empty cell (or a call of ``place``), counted from 1, row by row from the top left. With
    ``actions="discrete"`` numbers: up, right, down, left are 0 to 3 for the slider, the cells count from 0
    for the placer.

    ## Observation Space
    A dictionary. ``text``: for the slider the words of ``art/2048-v0``; for the placer the board with each
    empty cell's number in brackets, the score, and the tile to place. ``observation``: uint8 of shape
    (2, size, size), the exponents of the tiles (0 for an empty cell), then a plane filled with the exponent
    of the tile to place, 0 when the slider is to move. ``action_mask`` with ``actions="discrete"``.

    ## Starting State
    Two tiles in cells that chance draws; the slider moves.

    ## Rewards
    The sum of the two seats' ``points`` is zero: the slider gets the points of its move divided by
    ``points_scale``, the placer minus that. (What the slider's first move makes is not caused by the
    placer, but by PettingZoo's rules its first ``last()`` includes it.) A reply that is no valid move costs
    its seat ``invalid_action_penalty``, which the other does not get.

    ## Episode End
    Terminated when the slider makes the target tile, which is its success, or has no legal move, which is
    the placer's; truncated when the slider would be to move after ``max_cycles`` replies: no success.

    ## Information
    As in every ``TextAECEnv``; at the end ``metrics`` also has ``score``, ``best_tile`` and ``moves``.

    ## Arguments
    * ``board_size``: cells on a side, 3 to 8.
    * ``target``: the tile that wins, a power of two of at least 8 that the board can hold.
    * ``points_scale``: the points that are worth a reward of 1.
    * ``shared_chance``: whether the n-th tile of a seed's game is drawn alike whatever was played before.
    * ``actions``, ``max_cycles``, ``patience``, ``invalid_action_penalty``, ``render_mode``: as in every
      ``TextAECEnv``; ``render_mode`` may also be ``"rgb_array"``.

    ## References
    Gabriele Cirulli's 2048 (2014), and the "evil" variants of it that place the worst tile.

    ## Version History
    * v0: first version.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (PettingZoo's own)
        "name": "2048Duel-v0",
        "render_modes": ["ansi", "human", "rgb_array"],
        "is_parallelizable": False,
        "render_fps": 4,
    }
    seats: ClassVar[tuple[str, ...]] = (SLIDER, PLACER)
    instructions: ClassVar[Mapping[str, str]] = {
        SLIDER: (
            "You play 2048 against someone who places the new tiles. A move slides all tiles; equal tiles "
            "that meet merge into one of twice the value, which is added to the score. Reply with the "
            "direction alone: up, right, down or left. The game is over when no move is legal."
        ),
        PLACER: (
            "You play against someone who slides the tiles of 2048 and gets points for equal tiles that "
            "meet. After each slide you put the new tile into an empty cell, so that few points are made and "
            "soon no slide is possible. Reply with the number of an empty cell alone, shown in brackets."
        ),
    }
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = {SLIDER: SLIDERS, PLACER: PLACERS}
    shared: ClassVar[tuple[str, ...]] = ("rules", "target", "points_scale", "shared_chance")

    def __init__(
        self,
        *,
        board_size: int = 4,
        target: int = 2048,
        points_scale: float = 100.0,
        shared_chance: bool = True,
        actions: str = "text",
        max_cycles: int = 1500,
        patience: int | None = 3,
        invalid_action_penalty: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        if not 0 < points_scale < float("inf"):
            raise ValueError(f"points_scale must be above 0, not {points_scale}")
        self.rules = Rules.of(board_size)
        self.target = check_target(target, board_size)
        self.points_scale = float(points_scale)
        self.shared_chance = shared_chance
        self.board = 0
        self.score = 0
        self.moves = 0
        self.tile = 0
        self.legal: tuple[bool, ...] = (False,) * len(ACTIONS)
        self._tile_rng = TileRng(0, shared_chance)
        super().__init__(
            actions=actions,
            max_cycles=max_cycles,
            patience=patience,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )

    def begin(self, task: Task) -> str:
        """Draw the first two tiles."""
        key = int(self.np_random.integers(0, 2**64, dtype=np.uint64))
        self._tile_rng = TileRng(key, self.shared_chance)
        self.board = self.rules.start(self._tile_rng.opening())
        self.score = self.moves = self.tile = 0
        self.legal = self.rules.legal(self.board)
        return SLIDER

    @seat(SLIDER)
    @tool
    def move(self, direction: Literal["up", "right", "down", "left"]) -> MoveResult:
        """Slide all tiles.

        Args:
            direction: Where to.
        """
        action = ACTIONS.index(direction)
        if not self.legal[action]:
            raise ToolError(f"{direction} is illegal: it would change nothing")
        self.board, points = self.rules.slide(self.board, action)
        self.score += points
        self.moves += 1
        # The tile that the draw gives in the ordinary game; there it chooses the cell too.
        draw = self._tile_rng.draw(self.moves + 1, self.board)
        self.tile = self.rules.best(self.rules.spawn(0, draw))
        gain = points / self.points_scale
        ply = MoveResult(score_terms={SLIDER: {"points": gain}, PLACER: {"points": -gain}})
        if 1 << self.rules.best(self.board) >= self.target:
            return self._end(f"The tile {self.target} is made: the slider wins.", SLIDER).after(ply)
        return ply

    @seat(PLACER)
    @tool
    def place(self, cell: int) -> MoveResult:
        """Put the new tile into an empty cell.

        Args:
            cell: The cell's number, from 1, as shown in brackets.
        """
        cells = self.rules.size**2
        if not 1 <= cell <= cells:
            raise ToolError(f"there is no cell {cell}: they are numbered from 1 to {cells}")
        if self.exponents[cell - 1]:
            raise ToolError(f"cell {cell} is taken: choose an empty one, with its number in brackets")
        self.board = self.rules.place(self.board, cell - 1, self.tile)
        self.tile = 0
        self.legal = self.rules.legal(self.board)
        if not any(self.legal):
            return self._end("No move is legal: the placer wins.", PLACER)
        return MoveResult()

    def view(self, name: str) -> str:
        """The board as text; the placer's with numbered cells and the tile to place."""
        if name == SLIDER:
            legal = self.legal if self.agent_selection == SLIDER else (False,) * len(ACTIONS)
            return observation(self.exponents, self.rules.size, self.score, legal)
        tile = f"\ntile {1 << self.tile}" if self.tile else ""
        return f"{_numbered(self.exponents, self.rules.size)}\nscore {self.score}{tile}"

    def choices(self, name: str) -> Sequence[str]:
        """The directions, or the numbers of the cells."""
        return ACTIONS if name == SLIDER else [str(cell + 1) for cell in range(self.rules.size**2)]

    def legal_choices(self, name: str) -> Sequence[bool]:
        """The slides that change the board, or the empty cells."""
        return self.legal if name == SLIDER else [exponent == 0 for exponent in self.exponents]

    def array_space(self, name: str) -> spaces.Box:
        """The same for both seats."""
        most = self.rules.size**2 + 1
        return spaces.Box(0, most, (2, self.rules.size, self.rules.size), np.uint8)

    def array(self, name: str) -> NDArray[np.uint8]:
        """The exponents, and the tile to place all over a second plane; shape (2, size, size)."""
        planes = np.full((2, self.rules.size, self.rules.size), self.tile, np.uint8)
        planes[0] = np.reshape(self.exponents, planes.shape[1:])
        return planes

    def on_truncation(self) -> MoveResult:
        """Running out of turns ends the game as it stands, and nobody has succeeded."""
        return self._end("No turns are left.")

    def picture(self) -> str:
        """The board, the score, and the tile to place."""
        tile = f", to place: {1 << self.tile}" if self.tile else ""
        return f"{rendering.ansi(self.exponents, self.rules.size, self.score)}{tile}"

    def render(self) -> Any:
        """The board: text in ``"ansi"`` mode, a picture in ``"rgb_array"`` mode.

        Returns:
            In ``"rgb_array"`` mode an array of shape (height, width, 3); ``None`` in ``"human"`` mode, in
            which every step prints the board.
        """
        if self.render_mode == "rgb_array":
            return rendering.picture(self.exponents, self.rules.size, self.score)
        return super().render()

    @property
    def exponents(self) -> tuple[int, ...]:
        """The cells row by row: 0 for an empty one, else log2 of the tile."""
        return self.rules.exponents(self.board)

    def _end(self, words: str, *winners: str) -> MoveResult:
        metrics = {
            "score": float(self.score),
            "best_tile": float(1 << self.rules.best(self.board)),
            "moves": float(self.moves),
        }
        messages = dict.fromkeys(self.seats, words)
        return MoveResult(messages, ends=True, success=frozenset(winners), metrics=metrics)


def _numbered(exponents: Sequence[int], size: int) -> str:
    """The board in aligned columns, with the numbers of empty cells in brackets."""
    cells = [str(1 << exponent) if exponent else f"[{cell}]" for cell, exponent in enumerate(exponents, 1)]
    width = max(map(len, cells))
    rows = (cells[at : at + size] for at in range(0, size * size, size))
    return "\n".join(" ".join(cell.rjust(width) for cell in row) for row in rows)
