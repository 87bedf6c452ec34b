"""Playing episodes and games, judge rewards, evaluation, and the ``RolloutBackend`` interface."""
