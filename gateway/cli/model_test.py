"""`python -m gateway.cli.model_test`: what `scripts/model-test` runs."""

from __future__ import annotations

import sys

from gateway.feature import offered

if __name__ == "__main__":
    sys.exit(offered("model_test")())
