"""Training whose groups are played by actors of a Ray cluster."""
