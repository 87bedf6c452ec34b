"""What others see of a run: sinks that show its metrics, episodes and checkpoints elsewhere."""
