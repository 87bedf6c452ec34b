"""Settings of the documented results, one YAML file each: ``art-trainer train --recipe NAME``."""

DEFAULT_RECIPE = "email"
"""The recipe of ``train`` and ``serve`` if nothing says what to train on."""
DEFAULT_GAME_RECIPE = "2048-duel"
"""The recipe of ``self-play`` if nothing says what to play."""
