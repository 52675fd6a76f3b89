"""The process that renders one chat template: `python -m gateway.detection.worker`. See `gateway.detection.choice`.

A template is a program from a model's file. Its sandbox keeps it from files and from Python's inside, but stops no
endless loop: that does this process's limit of processor time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict

from gateway.schema.worker import NICE, bound_memory

MEMORY = 512 * 1024**2
"""Bytes of address space, where the system bounds it."""


def main() -> None:
    """Reads a template, the format that its marks show, and the seconds of processor time for it; writes the
    `RoundTrip`. All as JSON."""
    bound_memory(MEMORY)
    os.nice(NICE)
    from gateway.detection.jinja import compiled
    from normalizers.derive import NotRendered, RoundTrip, round_trip

    question = json.load(sys.stdin.buffer)
    # The signal ends the process, whatever it is doing.
    signal.setitimer(signal.ITIMER_PROF, question["seconds"])
    try:
        found = round_trip(compiled(question["template"]), detected=question["detected"])
    except NotRendered as error:
        found = RoundTrip(reason=str(error))
    except (MemoryError, RecursionError) as error:
        found = RoundTrip(reason=f"the template takes too much memory ({type(error).__name__})")
    json.dump(asdict(found), sys.stdout)


if __name__ == "__main__":
    main()
