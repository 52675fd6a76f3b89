"""Rooms under /llm/room: long conversations with agents, in bounded turns."""
