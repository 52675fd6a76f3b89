"""What is rented for a template of config.yaml."""

from __future__ import annotations

import msgspec

from gateway.features.agents.settings import RoomTemplate
from gateway.features.rooms.schemas import Rent


def rented(name: str, template: RoomTemplate) -> Rent:
    """Raises msgspec.ValidationError for values that the API wouldn't take."""
    actor = {"agent_id": name, "model": template.model, "provider": template.provider, "skills": list(template.skills)}
    policy = {"access": template.access, "allow": list(template.allow) or ["*"], "deny": list(template.deny)}
    rent = {
        "purpose": template.purpose,
        "metadata": {"template": name},
        "agents": [{**actor, "instructions": template.prompt}],
        "tool_policy": policy if template.access is not None else None,
        "done_policy": {"after_turn": template.after_turn, "idle_seconds": template.idle_seconds},
        "bounds": dict(template.bounds),
        "mounts": list(template.mounts),
    }
    return msgspec.convert(rent, Rent)
