"""What API keys may use, and `ctxgate keys`."""
