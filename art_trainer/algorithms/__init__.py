"""GRPO's mathematics: losses, importance ratios and advantages, as pure functions with their sources."""
