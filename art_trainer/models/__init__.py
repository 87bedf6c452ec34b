"""A language model in training: loading, chat templates, packing, log-probabilities, weights on disk."""
