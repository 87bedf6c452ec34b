"""OpenSpiel: its 2048 in C++, driven from Python, chance included. It builds no observation here."""

from __future__ import annotations

import random

import pyspiel
import timing

game = pyspiel.load_game("2048")
rng = random.Random(0)
state = game.new_initial_state()


def play(steps: int) -> int:
    global state
    made = 0
    while made < steps:
        if state.is_terminal():
            state = game.new_initial_state()
        elif state.is_chance_node():
            outcomes, weights = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(rng.choices(outcomes, weights)[0])
        else:
            state.apply_action(rng.choice(state.legal_actions()))
            made += 1
    return made


if __name__ == "__main__":
    timing.main({"array": play})
