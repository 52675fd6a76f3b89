"""Models that call tools: the bounded turn, the tools, MCP servers."""
