"""Renders calls as text, and writes grammars that force a model to write them."""
