"""Text environments that any RL code can use."""
