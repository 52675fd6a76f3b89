"""Ollama's own API: translates its requests to chat requests, and chat answers to its lines."""
