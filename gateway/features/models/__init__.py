"""Models on this machine: adds them to config.yaml, fetches their weights, removes them."""
