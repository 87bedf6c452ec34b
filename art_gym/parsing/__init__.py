"""Parsing a model's reply into a tool call."""
