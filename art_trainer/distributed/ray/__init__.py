"""Rollouts on Ray actors."""
