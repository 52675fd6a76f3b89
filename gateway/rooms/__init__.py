"""Bounded live turns under /llm/room."""
