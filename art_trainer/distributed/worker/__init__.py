"""The worker process: connects to a server, plays the episodes it is given, and returns results."""
