from __future__ import annotations

import sys

from gateway.feature import offered

sys.exit(offered("model_test")())
