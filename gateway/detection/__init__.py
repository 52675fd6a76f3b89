"""Which format a model writes: see `gateway.detection.choice`."""
