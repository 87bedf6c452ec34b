"""``toy/Blackjack-v0``: Gymnasium's Blackjack as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.toy_text.blackjack import BlackjackEnv

from art_gym.baselines import Act, Baseline
from art_gym.wrappers.adapters.common import positive_return
from art_gym.wrappers.text_adapter import TextAdapter, random_player

ACTIONS = ("stick", "hit")
"""In the order of Blackjack's numbers."""


def basic(env: BlackjackTextEnv, rng: np.random.Generator) -> Act:
    """The best policy of Sutton and Barto's Figure 5.2, up to rounding."""

    def act(observation: str) -> str:
        total, dealer, ace = env.seen
        if ace:
            sticks = total >= 19 or (total == 18 and dealer not in (9, 10))
        elif total >= 17 or total <= 11:
            sticks = total >= 17
        else:
            sticks = 2 + 2 * (total == 12) <= dealer <= 6
        return "stick" if sticks else "hit"

    return act


def like_the_dealer(env: BlackjackTextEnv, rng: np.random.Generator) -> Act:
    """Hits below 17, as the dealer does."""
    return lambda observation: "hit" if env.seen[0] < 17 else "stick"


class BlackjackTextEnv(TextAdapter):
    """Come nearer to 21 than the dealer, and not beyond it.

    ## Description
    Gymnasium's ``Blackjack-v1``: cards from an endless deck. Hit for one more card, or stick; then the dealer
    draws up to 17.

    ## Action Space
    Text: ``hit``, ``stick``, or a call of ``act``.

    ## Observation Space
    Text: the sum of your cards, the dealer's card, and whether you have an ace that counts 11.

    ## Starting State
    As in ``Blackjack-v1``; the same seed gives the same cards.

    ## Rewards
    1 for a win, -1 for a loss, 0 for a draw. A reply that is no action costs ``-invalid_reward``.

    ## Episode End
    Terminated when you stick or have more than 21; a win is a success. Truncated after ``max_turns`` replies.

    ## Information
    The standard keys, and at the end the metric ``env_return``.

    ## Arguments
    * ``natural``, ``sab``: as in ``Blackjack-v1``.
    * ``max_turns``, ``invalid_reward``, ``render_mode``: as in :class:`~art_gym.wrappers.TextAdapter`.

    ## References
    R. Sutton and A. Barto, "Reinforcement Learning: An Introduction", 2nd edition, example 5.1.

    ## Version History
    * v0: first version.
    """

    instructions: ClassVar[str] = (
        "You play Blackjack: come nearer to 21 than the dealer, and not beyond it. Reply with the action "
        "alone: hit or stick."
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "random": random_player,
        "like-the-dealer": like_the_dealer,
        "basic": basic,
    }

    def __init__(
        self,
        *,
        natural: bool = False,
        sab: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            BlackjackEnv(natural=natural, sab=sab),
            actions=ACTIONS,
            success=positive_return,
            **{"max_turns": 30, **options},
        )

    @property
    def seen(self) -> tuple[int, int, int]:
        """The sum of your cards, the dealer's card, and whether an ace counts 11."""
        total, dealer, ace = self.env._get_obs()
        return int(total), int(dealer), int(ace)

    def describe(self, observation: Any) -> str:
        """The cards, and at the end who won."""
        total, dealer, ace = observation
        if not self.played.terminated:
            shown = "an ace" if dealer == 1 else dealer
            usable = ", with an ace that counts 11" if ace else ""
            return f"your cards: {total}{usable}\ndealer: {shown}"
        result = self.played.env_return
        verdict = "You win." if result > 0 else "You lose." if result < 0 else "A draw."
        cards = self.env.dealer
        dealt = sum(cards) + 10 * (1 in cards and sum(cards) <= 11)
        return f"your cards: {total}\ndealer: {dealt}\n{verdict}"
