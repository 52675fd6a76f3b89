import signal
import sys

from benchmarks.model_test.cli import main
from gateway.cli.broken_pipe import exit_quietly

# Ends as with Ctrl-C: what was answered is written, the gateway of --serve is ended.
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.exit(exit_quietly(main))
