"""Normalises engines' answers for clients, without I/O."""
