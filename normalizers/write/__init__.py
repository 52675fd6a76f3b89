"""Calls as text, and grammars that hold a model to them."""
