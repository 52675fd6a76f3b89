"""The files of an agent's object, as text. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.features.agents.settings import Rooms
from gateway.features.agents.tools.base import ToolPolicy
from gateway.features.ctx.metadata import one_line
from gateway.features.ctx.policy import limits_text, policy_text
from gateway.features.ctx.settings import CtxAgent
from gateway.features.ctx.tools.known import Described


def metadata(name: str, agent: CtxAgent, shebang: str) -> str:
    values = {
        "id": name,
        "name": name,
        "description": agent.description or f"An agent on {agent.model}",
        "type": "agent",
        "created_at": "",
        "owned_by": "ctxgate",
        "context_length": "",
        "object": f"agent/{name}",
        "model": agent.model,
        "session": "socket",
        "status": f"{name}.d/status",
        "policy": f"{name}.d/policy",
        "tools": f"{name}.d/tools",
    }
    return f"#!{shebang}\n" + "".join(f"# cortexfs.{key}={one_line(value)}\n" for key, value in values.items())


def control_files(agent: CtxAgent, rooms: Rooms, known: Sequence[Described]) -> Mapping[str, str]:
    """Name → text of each file in its `.d` folder but the live ones. Only `tools` is for information alone."""
    permitted = ToolPolicy(agent.tools.access, agent.tools.allow, agent.tools.deny)
    limits = {
        "wall_seconds": _least(rooms.turn_seconds, agent.turn_seconds),
        "model_calls": _least(rooms.turn_model_calls, agent.turn_model_calls),
        "tool_calls": _least(rooms.turn_tool_calls, agent.turn_tool_calls),
        "output_tokens": _least(rooms.turn_output_tokens, agent.turn_output_tokens),
    }
    return {
        "description": f"{agent.description}\n",
        "model": f"{agent.model}\n",
        "policy": policy_text(agent.tools),
        "limits": limits_text(limits),
        "tools": "".join(f"{tool.name}\n" for tool in known if permitted.permits(tool)),
        "system.md": f"{agent.instructions}\n",
        "session": "socket\n",
    }


def _least(bound: float, other: float | None) -> float:
    return bound if other is None else min(bound, other)
