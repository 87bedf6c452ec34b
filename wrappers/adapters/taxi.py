"""``toy/Taxi-v0``: Gymnasium's Taxi as text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.toy_text.taxi import MAP, TaxiEnv
from numpy.typing import NDArray

from art_gym.baselines import Act, Baseline
from art_gym.wrappers.adapters.common import action_values, best_action
from art_gym.wrappers.text_adapter import EpisodeProgress, TextAdapter, random_player

ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")
"""In the order of Taxi's numbers."""

_STANDS = ("red (R)", "green (G)", "yellow (Y)", "blue (B)")


@lru_cache(maxsize=4)
def _values(is_rainy: bool, rainy_probability: float) -> NDArray[np.float64]:
    return action_values(TaxiEnv(is_rainy=is_rainy, rainy_probability=rainy_probability).P)


def optimal(env: TaxiTextEnv, rng: np.random.Generator) -> Act:
    """The best that can be done, whatever the weather; it does not foresee a passenger's change of mind."""
    values = _values(env.is_rainy, env.env.rainy_probability)

    def act(observation: str) -> str:
        return ACTIONS[best_action(values[env.env.s], rng)]

    return act


class TaxiTextEnv(TextAdapter):
    """Drive a passenger to a stand, on a text map.

    ## Description
    Gymnasium's ``Taxi-v4``: fetch the passenger at one stand and set them down at another.

    ## Action Space
    Text: ``south``, ``north``, ``east``, ``west``, ``pickup``, ``dropoff``, or a call of ``act``.

    ## Observation Space
    Text: the map with ``@`` for the taxi, where the passenger is and wants to go, and which actions change
    anything now. A ``|`` is a wall, a ``:`` can be passed.

    ## Starting State
    As in ``Taxi-v4``; the same seed gives the same start.

    ## Rewards
    Taxi's own: -1 a step, -10 for a pickup or dropoff in a wrong place, 20 for the passenger's arrival. A
    reply that is no action costs ``-invalid_reward``.

    ## Episode End
    Terminated at the passenger's arrival, which is a success; truncated after ``max_turns`` replies.

    ## Information
    The standard keys, and at the end the metric ``env_return``.

    ## Arguments
    * ``is_rainy``, ``rainy_probability``, ``fickle_passenger``, ``fickle_probability``: as in ``Taxi-v4``.
    * ``max_turns``, ``invalid_reward``, ``render_mode``: as in :class:`~art_gym.wrappers.TextAdapter`.

    ## References
    T. G. Dietterich, "Hierarchical Reinforcement Learning with the MAXQ Value Function Decomposition", 2000.

    ## Version History
    * v0: first version.
    """

    instructions: ClassVar[str] = (
        "You drive a taxi, shown as @. Fetch the passenger, drive to the destination and let them out. On "
        "the map | is a wall and : can be passed. Reply with the action alone: south, north, east, west, "
        "pickup or dropoff."
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {"random": random_player, "optimal": optimal}

    def __init__(
        self,
        *,
        is_rainy: bool = False,
        rainy_probability: float = 0.8,
        fickle_passenger: bool = False,
        fickle_probability: float = 0.3,
        **options: Any,
    ) -> None:
        self.is_rainy = is_rainy
        env = TaxiEnv(
            is_rainy=is_rainy,
            rainy_probability=rainy_probability,
            fickle_passenger=fickle_passenger,
            fickle_probability=fickle_probability,
        )
        super().__init__(
            env,
            actions=ACTIONS,
            masks="show",
            success=_arrived,
            **{"max_turns": 200, "invalid_reward": -1, **options},
        )

    def describe(self, observation: Any) -> str:
        """The map, the passenger and the destination."""
        row, column, passenger, destination = self.env.decode(int(observation))
        lines = [list(line) for line in MAP]
        lines[1 + row][1 + 2 * column] = "@"
        shown = "\n".join("".join(line) for line in lines)
        if self.played.terminated:
            return f"{shown}\nThe passenger has arrived."
        where = "in the taxi" if passenger == len(_STANDS) else f"at {_STANDS[passenger]}"
        return (
            f"{shown}\ntaxi: row {row} column {column}\npassenger: {where}\n"
            f"destination: {_STANDS[destination]}"
        )


def _arrived(played: EpisodeProgress) -> bool:
    return played.terminated
