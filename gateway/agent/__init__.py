"""The bounded turn of a model and its tools, as rooms use it."""
