"""Checks of what serving needs."""
