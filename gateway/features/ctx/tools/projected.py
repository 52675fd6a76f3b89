"""The files of a tool's object, as text. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.features.ctx.metadata import one_line
from gateway.features.ctx.policy import policy_text
from gateway.features.ctx.settings import CtxTools
from gateway.features.ctx.tools.known import Described


def metadata(tool: Described, shebang: str) -> str:
    values = {
        "id": tool.name,
        "name": tool.name,
        "description": tool.description,
        "type": "tool",
        "created_at": "",
        "owned_by": "ctxgate",
        "context_length": "",
        "object": f"tool/{tool.name}",
        "session": "none",
        "status": f"{tool.name}.d/status",
        "cap": ",".join(capabilities(tool)),
        "schema": f"{tool.name}.d/schema",
        "policy": f"{tool.name}.d/policy",
    }
    return f"#!{shebang}\n" + "".join(f"# cortexfs.{key}={one_line(value)}\n" for key, value in values.items())


def capabilities(tool: Described) -> list[str]:
    """What a call does: `read`, `write` or `external`; `idempotent`; what it spends."""
    return [tool.effect, *(["idempotent"] if tool.idempotent else []), tool.cost]


def control_files(tool: Described, policy: CtxTools) -> Mapping[str, str]:
    """Name → text of each file in its `.d` folder but the live ones."""
    return {
        "id": f"{tool.name}\n",
        "description": f"{tool.description}\n",
        "schema": msgspec.json.format(msgspec.json.encode(tool.parameters), indent=2).decode() + "\n",
        "cap": "".join(f"{word}\n" for word in capabilities(tool)),
        "policy": policy_text(policy),
        "session": "none\n",
    }


def usage(description: str, schema: Mapping[str, object]) -> str:
    """Describes the arguments for people."""
    lines = [description, ""]
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, Mapping) and properties:
        for name, about in properties.items():
            about = about if isinstance(about, Mapping) else {}
            kind = about.get("type") or "any"
            must = ", required" if isinstance(required, list) and name in required else ""
            lines.append(f"  {name} ({kind}{must})  {about.get('description', '')}".rstrip())
    else:
        lines.append("  It takes no arguments: {}")
    return "\n".join(lines)
