"""What executing an object of /ctx costs above the same request made by a C client: `python -m benchmarks.ctx_exec`.

Both ask the same running gateway the same thing, each as a process of its own, in turns: C, object, C, object, ...
The C client is compiled here; without a compiler it is curl. Nothing else may differ, so the model is the echo.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.ctx.served import Tree, tree

GOAL = 60.0
"""Milliseconds that the object may cost more, median against median."""

C_CLIENT = r"""
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* argv: port, body. Sends one chat request, copies the answer to stdout until the gateway closes. */
int main(int argc, char **argv) {
  char request[8192], answer[65536];
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (argc != 3 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) return 69;
  int size = snprintf(request, sizeof request,
                      "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                      "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                      strlen(argv[2]), argv[2]);
  if (write(fd, request, size) != size) return 69;
  for (ssize_t got; (got = read(fd, answer, sizeof answer)) > 0;)
    if (write(1, answer, got) != got) return 1;
  return 0;
}
"""

BODY = '{"model": "echo", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'


@dataclass(frozen=True)
class Result:
    """Milliseconds of each run, in their order."""

    client: str
    http: list[float]
    object: list[float]

    @property
    def above(self) -> float:
        return statistics.median(self.object) - statistics.median(self.http)


def measure(runs: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="cg") as name:
        folder = Path(name)
        config = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}}
        with tree(folder, config) as made:
            client, command = _client(folder, made.port)
            executed = [str(made.object("debug/echo")), "hello"]
            for _ in range(3):
                _timed(command, made, b"[DONE]")
                _timed(executed, made, b'"status":"ok"')
            pairs = [(_timed(command, made, b"[DONE]"), _timed(executed, made, b'"status":"ok"')) for _ in range(runs)]
    return Result(client, [http for http, _ in pairs], [executed for _, executed in pairs])


def _client(folder: Path, port: int) -> tuple[str, list[str]]:
    """Its name, and the command that asks."""
    compiler = shutil.which("cc")
    if compiler is not None:
        source, program = folder / "client.c", folder / "client"
        source.write_text(C_CLIENT)
        subprocess.run([compiler, "-O2", "-o", program, source], check=True, timeout=60)
        return "C client", [str(program), str(port), BODY]
    curl = shutil.which("curl")
    if curl is None:
        raise SystemExit("neither cc nor curl is installed: there is no C client to compare with")
    return "curl", [curl, "-s", f"http://127.0.0.1:{port}/v1/chat/completions", "-d", BODY]


def _timed(command: Sequence[str], made: Tree, last: bytes) -> float:
    """Milliseconds from the process's start to its end."""
    began = time.perf_counter()
    done = subprocess.run(command, env=made.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    took = (time.perf_counter() - began) * 1000
    assert done.returncode == 0, done
    assert last in done.stdout, done
    return took


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="of each (default: 50)")
    result = measure(parser.parse_args(argv).runs)
    for name, times in ((result.client, result.http), ("object", result.object)):
        low, high = min(times), max(times)
        print(f"{name:9} {statistics.median(times):6.1f} ms median of {len(times)} ({low:.1f} to {high:.1f})")
    print(f"above     {result.above:6.1f} ms, goal at most {GOAL:.0f}")
    return 0 if result.above <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
