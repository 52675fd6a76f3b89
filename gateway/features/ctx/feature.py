"""Models, agents and tools as executable files."""

from __future__ import annotations

from gateway.feature import Background, Feature

FEATURE = Feature(
    name="ctx",
    sections={"ctx": "gateway.config.values:Ctx"},
    commands={
        "ctx": ("gateway.features.ctx.commands.ctx:ctx", "Models as files: executable, with sockets and control files.")
    },
    background=(Background("gateway.features.ctx.live:live", lambda config: config.ctx.enabled),),
    prunes=("gateway.features.ctx.journal:prune",),
    migrations="gateway.features.ctx.migrations",
    offers={"agent_provider": "gateway.features.ctx.agents.provider:provider"},
)
