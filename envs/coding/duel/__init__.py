"""A two-player coding game: one writes tests that break the other's program."""
