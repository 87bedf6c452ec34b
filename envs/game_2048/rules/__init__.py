"""The rules of 2048: board, tile generator and rewards."""
