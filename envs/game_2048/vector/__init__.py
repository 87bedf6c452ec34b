"""Many games of 2048 at once."""
