"""Agents as executable files and sockets. An agent's session is a room."""
