"""Readers of model text: the framing of an answer, and one dialect for each way of writing calls."""

NAME_KEYS = frozenset({"name", "tool", "tool_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "params", "input", "tool_parameters"})
CALL_KEYS = NAME_KEYS | ARGUMENT_KEYS | {"function", "id", "type"}
"""Keys of a call written as a JSON object."""
