"""What every HTTP server of this package shares: who may come in, how much, and the thread it runs in."""
