"""ctxgate: one OpenAI-compatible endpoint on localhost for local models."""

__version__ = "0.1.0"
