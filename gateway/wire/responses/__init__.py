"""OpenAI's Responses API: a request to a chat request, a chat answer to a response and its events."""
