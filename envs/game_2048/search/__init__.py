"""Search policies for 2048: expectimax and snake."""
