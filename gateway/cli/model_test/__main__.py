from __future__ import annotations

import sys
from collections.abc import Callable

from gateway.feature import offered

program: Callable[[], int] = offered("model_test")
sys.exit(program())
