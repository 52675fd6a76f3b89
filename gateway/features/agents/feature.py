"""Models that call tools: the bounded turn, the tools, MCP servers, and Responses that call their tools."""

from __future__ import annotations

from gateway.feature import Extra, Feature

FEATURE = Feature(
    name="agents",
    sections={"mcp": "gateway.features.agents.settings:MCP"},
    settle="gateway.features.agents.settings:settle",
    commands={
        "tools": (
            "gateway.features.agents.commands.tools:tools",
            "List and call the tools of models, including those of MCP servers.",
        )
    },
    migrations="gateway.features.agents.migrations",
    offers={"remote_tools": "gateway.features.agents.remote:join"},
    extra=Extra("mcp", ("mcp",)),
)
