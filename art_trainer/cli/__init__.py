"""The ``art-trainer`` command: one module a command, flags and work together."""
