"""What every HTTP server of the project shares: access rules, limits, and running in a thread."""
