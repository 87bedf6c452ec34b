"""Inference engines that run as servers of their own: token ids in, token ids and log-probs out."""
