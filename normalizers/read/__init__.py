"""Readers of one region of calls each; the registry loads them on first use."""

NAME_KEYS = frozenset({"name", "tool", "tool_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "params", "input", "tool_parameters"})
CALL_KEYS = NAME_KEYS | ARGUMENT_KEYS | {"function", "id", "type"}
"""Keys of a call that is written as a JSON object."""
