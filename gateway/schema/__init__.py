"""JSON Schema: the one checker, and the worker process that bounds its work."""
