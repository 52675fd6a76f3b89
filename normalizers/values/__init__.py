"""Values of arguments: literals, loose JSON, and types by schema."""
