"""Anthropic's Messages API: translates its requests to chat requests, and chat answers to messages and events."""
