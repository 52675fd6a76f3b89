"""Values of arguments: literals, and types by schema."""
