"""OpenAI's Responses API: translates its requests to chat requests, and chat answers to responses and events."""
