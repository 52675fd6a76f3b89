"""Commands that run MCP servers."""

from __future__ import annotations

import sys
from pathlib import Path

MISBEHAVING = Path(__file__).parents[1] / "agents/mcp/misbehaving.py"
TIME = (sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC")
"""mcp-server-time, from PyPI."""
