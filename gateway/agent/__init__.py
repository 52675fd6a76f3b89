"""The bounded turn of a model and its tools."""
