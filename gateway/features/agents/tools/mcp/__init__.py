"""MCP servers, by the official SDK: their tools join the catalogue as `NAME.tool`.

The SDK takes half a second to import, so only a thread does, when the first server starts.
"""
