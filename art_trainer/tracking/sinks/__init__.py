"""Sending a run's metrics, episodes and traces to other services (W&B, Langfuse, OpenTelemetry, ...)."""
