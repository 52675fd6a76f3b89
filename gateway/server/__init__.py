"""HTTP mechanism that knows no API: protocol, bounds, keys, keep-alive comments."""
