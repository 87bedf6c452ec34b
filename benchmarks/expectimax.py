"""How well do the players of 2048 that use no model play? Expectimax over whole games, beside the others.

The games are those of the test split: seed 0, 1, 2, … The claim is for one setting of the search: it
reaches 2048 in at least 99% and 8192 in at least half of 100 games, and plays at least 100 moves a second
on one core.

    python benchmarks/expectimax.py                # 100 games of the claim's setting
    python benchmarks/expectimax.py --check        # exits 1 if the claim does not hold
    python benchmarks/expectimax.py --depth 2 --games 20
    python benchmarks/expectimax.py --players      # the baselines: 1,000 games each, 100 of expectimax
    python benchmarks/expectimax.py --quick        # a few games of each: shows that it runs
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import gymnasium as gym
import harness
import numpy as np

import art_gym  # noqa: F401 (registers the environments)
from art_gym.env import Baseline
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.players import BASELINES, expectimax
from art_gym.envs.game_2048.search.expectimax import Expectimax

_DEPTH, _CUTOFF = 8, 0.02
_SHARES = {2048: 0.99, 8192: 0.5}
_MOVES_PER_SECOND = 100
_MOST_TURNS = 1_000_000  # no game takes so many


@dataclass(frozen=True)
class Game:
    """What one game came to."""

    seed: int
    score: int
    best_tile: int
    moves: int
    seconds: float
    """CPU time."""


def play(player: Baseline, seeds: Sequence[int], *, label: str) -> list[Game]:
    """Play whole games and show how far it is."""
    env = gym.make("art/2048-v0", split="test", max_turns=_MOST_TURNS).unwrapped
    assert isinstance(env, Game2048Env)
    games: list[Game] = []
    shown = time.monotonic()
    for seed in seeds:
        started = time.process_time()
        observation, info = env.reset(seed=seed)
        act = player(env, np.random.default_rng(seed))
        while "metrics" not in info:
            observation, _, _, _, info = env.step(act(observation))
        metrics, seconds = info["metrics"], time.process_time() - started
        game = Game(seed, int(metrics["score"]), int(metrics["best_tile"]), int(metrics["moves"]), seconds)
        games.append(game)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            line = f"{label}: {len(games)} of {len(seeds)} games, {summary(games)}"
            print(line, file=sys.stderr, flush=True)
    return games


def share(games: Sequence[Game], tile: int) -> float:
    """In how many of the games the tile was reached."""
    return sum(game.best_tile >= tile for game in games) / len(games)


def rate(games: Sequence[Game]) -> float:
    """Moves a CPU-second, the environment's part included."""
    return sum(game.moves for game in games) / sum(game.seconds for game in games)


def mean(games: Sequence[Game]) -> tuple[float, float]:
    """The mean score and the half width of its 95% interval."""
    scores = np.array([game.score for game in games], float)
    half = 1.96 * scores.std(ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else np.inf
    return float(scores.mean()), float(half)


def summary(games: Sequence[Game]) -> str:
    """One line on some games."""
    score, half = mean(games)
    tiles = [tile for tile in (512, 1024, 2048, 4096, 8192, 16384, 32768) if share(games, tile)]
    reached = ", ".join(f"{tile} in {share(games, tile):.1%}" for tile in tiles[-5:]) or "none of 512"
    return f"score {score:,.0f} ± {half:,.0f}, {reached}, {rate(games):,.0f} moves/s"


def warm_up(player: Baseline) -> None:
    """Compile before anything is timed."""
    env = Game2048Env(max_turns=2)
    env.reset(seed=0)
    env.step(player(env, np.random.default_rng(0))(""))


def check(games: Sequence[Game]) -> list[str]:
    """The claims that do not hold, as text."""
    failures = [
        f"{tile} was reached in {share(games, tile):.0%} of the games, not {least:.0%}"
        for tile, least in _SHARES.items()
        if share(games, tile) < least
    ]
    if rate(games) < _MOVES_PER_SECOND:
        failures.append(f"it played {rate(games):.0f} moves a second, not {_MOVES_PER_SECOND}")
    return failures


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="a few games: shows that it runs")
    parser.add_argument("--games", type=int, help="how many games (default 100 of expectimax)")
    parser.add_argument("--depth", type=int, default=_DEPTH, help="how many moves it looks ahead")
    parser.add_argument("--cutoff", type=float, default=_CUTOFF, help="positions less likely are cut off")
    parser.add_argument(
        "--players", nargs="*", choices=BASELINES, help="these baselines instead; all of them without a name"
    )
    arguments = parser.parse_args()
    # Made once at once, so that it says what is out of range.
    Expectimax(arguments.depth, cutoff=arguments.cutoff)
    setting = f"expectimax, depth {arguments.depth}"
    chosen = expectimax(arguments.depth, cutoff=arguments.cutoff)
    players: dict[str, Baseline] = {setting: chosen}
    if arguments.players is not None:
        players = {name: BASELINES[name] for name in arguments.players or BASELINES}
    results: dict[str, list[Game]] = {}
    for name, player in players.items():
        usual = 100 if name.startswith("expectimax") else 1_000
        count = arguments.games or (2 if arguments.quick else usual)
        warm_up(player)
        results[name] = play(player, range(count), label=name)
        print(f"{name}: {count} games, {summary(results[name])}", flush=True)
    failures = check(results[setting]) if setting in results else []
    figures = {
        "cutoff": arguments.cutoff,
        "games": {name: [asdict(game) for game in games] for name, games in results.items()},
    }
    last = next(reversed(results.values()))
    score = f"mean score {mean(last)[0]:,.0f}, 8192 in {share(last, 8192):.0%}, {rate(last):,.0f} moves/s"
    return harness.finish(arguments, figures, failures, score)


if __name__ == "__main__":
    sys.exit(main())
