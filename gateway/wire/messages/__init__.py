"""Anthropic's Messages API: a request to a chat request, a chat answer to a message and its events."""
