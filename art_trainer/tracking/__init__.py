"""What a run writes: its directory, the episode store, callbacks, health checks and loggers."""
