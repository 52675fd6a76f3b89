"""`python -m gateway` is `ctxgate`."""

import sys

from gateway.cli import main

sys.exit(main())
