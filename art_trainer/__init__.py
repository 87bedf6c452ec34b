"""Trains LLM agents on text environments."""
