"""A tool-calling benchmark over HTTP, which can gate model swaps: docs/model-test.md."""

VERSION = "1.0"
CHECKER = "core/2+bfcl/2026.3.23"
"""Changes whenever an answer may be judged differently. Results of two versions aren't compared."""
