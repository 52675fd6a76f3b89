"""Models that hear, speak, draw and fill in, and everything else that a model's own server offers."""
