"""Training over the network: a server that learns and hands out episodes, and workers that play them."""
