"""Adds models to config.yaml and removes them: what a source holds, its entry in the file, its weights."""
