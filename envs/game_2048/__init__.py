"""2048: in words, as arrays, in batches and for two players, all on the rules in ``board.py``."""
