"""A tool-calling benchmark over HTTP that may gate the swap of a model: docs/model-test.md."""

VERSION = "1.0"
CHECKER = "core/2+bfcl/2026.3.23"
"""Changes whenever an answer may be judged otherwise than before: results of two checkers aren't compared."""
