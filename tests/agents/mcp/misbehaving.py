"""An MCP server, without the SDK, that does what a server should never do.

python misbehaving.py [FAULT]: at its start it does FAULT: silent, nonsense, dies, line (one without an end) or lines
(without end). Its tools do the same on demand.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

NAMES = (
    *("echo", "silent", "nonsense", "wrong", "dies", "line", "lines", "fails", "long", "environment", "grows", "slow"),
    *("marks", "looks", "stays", "values", "pings"),
)
"""marks and looks write a line to the file `text`; the first time, they wait until the gateway is gone. stays writes
its process number there, and outlives its standard input. grows adds a tool, and may be told one of LISTS."""
LISTS: dict[str, dict[str, Any]] = {
    "locked": {"error": {"code": -32603, "message": "database is locked"}},
    "wrong": {"result": {"tools": "this isn't a list"}},
}
"""What it answers once in place of its tools."""


def main() -> None:
    fault = sys.argv[1] if len(sys.argv) > 1 else ""
    print("starting up", flush=True)  # many servers log to their standard output
    print("the last words of a server", file=sys.stderr, flush=True)
    more: list[str] = []
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if fault:
            misbehave(fault)
        result = answer(message, more)
        say({"jsonrpc": "2.0", "id": message["id"], **result})


def say(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(message: dict[str, Any], more: list[str]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            return {
                "result": {
                    "protocolVersion": message["params"]["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "misbehaving", "version": "1"},
                }
            }
        case "tools/list" if more and more[-1] in LISTS:
            return LISTS[more.pop()]
        case "tools/list":
            return {"result": {"tools": [tool(name) for name in dict.fromkeys((*NAMES, *more))]}}
        case "tools/call":
            return called(message["params"]["name"], message["params"].get("arguments") or {}, more)
        case method:
            return {"error": {"code": -32601, "message": f"no method {method}"}}


def tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False}
    hints = {"annotations": {"readOnlyHint": True, "openWorldHint": False}} if name in ("echo", "looks") else {}
    return {"name": name, "description": f"It is {name}.", "inputSchema": schema, **hints}


def called(name: str, arguments: dict[str, Any], more: list[str]) -> dict[str, Any]:
    text = ""
    match name:
        case "echo":
            text = arguments.get("text", "")
        case "marks" | "looks":
            with open(arguments["text"], "a+", encoding="utf-8") as file:
                file.write("called\n")
                file.seek(0)
                lines = file.readlines()
            if len(lines) == 1:
                sys.stdin.read()
            text = "again"
        case "stays":
            with open(arguments["text"], "w", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
            misbehave("silent")
        case "slow":
            time.sleep(float(arguments["text"]))
            text = "late"
        case "long":
            text = "x" * 100_000
        case "environment":
            text = json.dumps(dict(os.environ))
        case "fails":
            return {"result": {"content": [{"type": "text", "text": "out of order"}], "isError": True}}
        case "values":
            return {"result": {"content": [[]] * 1_000_000}}
        case "wrong":
            return {"result": {"content": "this isn't a list"}}
        case "grows":
            more += ["new", arguments.get("text", "new")]
            say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        case _:
            misbehave(name)
    return {"result": {"content": [{"type": "text", "text": text}]}}


def misbehave(fault: str) -> None:
    match fault:
        case "silent":
            while True:
                time.sleep(1000)
        case "nonsense":
            for _ in range(10):
                print("<html>This isn't JSON</html>", flush=True)
            misbehave("silent")
        case "dies":
            os._exit(3)
        case "line":
            while True:
                sys.stdout.write("x" * 65536)
        case "pings":
            while True:
                say({"jsonrpc": "2.0", "id": "x", "method": "ping"})
        case "lines":
            while True:
                say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
        case _:
            raise AssertionError(fault)


if __name__ == "__main__":
    main()
