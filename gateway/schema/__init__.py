"""JSON Schema: the checker, and the worker process that bounds its work."""
