"""Showing a run in other programs: Weights & Biases, TensorBoard."""
