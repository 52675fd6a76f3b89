"""The OpenAI face: `/v1/*`, health and errors over HTTP."""
