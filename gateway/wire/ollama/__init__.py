"""Ollama's own API: a request to a chat request, a chat answer to its lines."""
