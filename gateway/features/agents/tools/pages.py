"""Runs `extract` on a page, in a process with bounded time and memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gateway.features.agents.tools.base import ToolError

PROGRAM = Path(__file__).with_name("extract.py")
SECONDS = 10
MEMORY = 1024 * 1024 * 1024
"""Bytes of address space. Most of it is never used."""
PATIENCE = 6
"""Wall-clock seconds for each second of processor time: engines have priority."""
AT_ONCE = 2
"""How many calls of `convert` a caller should run at once."""

Kind: TypeAlias = Literal["html", "json", "text"]


async def convert(
    form: Literal["markdown", "compact"],
    url: str,
    page: str,
    kind: Kind = "html",
    maximum: int = 20_000,
    *,
    seconds: int = SECONDS,
    memory: int = MEMORY,
    program: Path = PROGRAM,
) -> dict[str, Any]:
    """Converts the page at `url`; see `extract`. seconds: of processor time. memory: in bytes.

    Raises ToolError, code `too_complex`.
    """
    # Not our environment: it may contain keys.
    environ = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-P", "-s", str(program), form, url, str(seconds), str(memory), kind, str(maximum)]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environ,
        cwd="/",
    )
    try:
        async with asyncio.timeout(PATIENCE * seconds):
            output, _ = await process.communicate(page.encode("utf-8", "replace"))
    except TimeoutError:
        raise ToolError("too_complex", "converting the page takes too long") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ToolError("too_complex", "the page can't be converted: it is nested too deeply or too large")
    result: dict[str, Any] = json.loads(output)
    return result
