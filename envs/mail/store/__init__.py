"""The mail store: one SQLite file with full-text search."""
