"""Models, agents and tools as executable files."""

from __future__ import annotations

from typing import Any

from gateway.feature import Background, Feature


def _enabled(config: Any) -> bool:
    return "ctx" in config.sections and config.sections["ctx"].enabled


FEATURE = Feature(
    name="ctx",
    sections={"ctx": "gateway.features.ctx.settings:Ctx"},
    at_start=("ctx.enabled", "ctx.root"),
    settle="gateway.features.ctx.settle:settle",
    commands={
        "ctx": ("gateway.features.ctx.commands.ctx:ctx", "Models as files: executable, with sockets and control files.")
    },
    background=(Background("gateway.features.ctx.live:live", _enabled),),
    prunes=("gateway.features.ctx.journal:prune",),
    migrations="gateway.features.ctx.migrations",
    offers={"agent_provider": "gateway.features.ctx.agents.provider:provider"},
)
