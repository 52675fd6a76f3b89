import sys

from benchmarks.model_test.cli import main

sys.exit(main())
