"""Search players for 2048: expectimax and snake."""
