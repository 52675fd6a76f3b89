"""Adds models to config.yaml and removes them: inspects sources, writes entries, fetches and deletes weights."""
