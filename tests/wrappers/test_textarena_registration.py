import importlib.util

import pettingzoo
import pytest

from art_gym.catalog import entries
from art_trainer.errors import ConfigError
from art_trainer.training.self_play import game_maker

GAME = "textarena/Game-v0"


def test_a_game_of_textarena_is_registered_for_code_that_steps_one_seat_at_a_time() -> None:
    assert GAME in pettingzoo.aec_registry
    assert GAME not in pettingzoo.parallel_registry
    (entry,) = (entry for entry in entries() if entry.id == GAME)
    assert entry.summary.startswith("A game of TextArena for two")


@pytest.mark.skipif(importlib.util.find_spec("textarena") is not None, reason="TextArena is installed")
def test_a_missing_library_is_named() -> None:
    with pytest.raises(ConfigError, match="pip install textarena"):
        game_maker(GAME)
