"""2048: as text, as arrays, in batches and for two players, all on the rules in ``rules/board.py``."""
