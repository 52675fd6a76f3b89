"""`/llms.txt`: what the gateway serves, for language models to read (llmstxt.org). Made from `/openapi.json`."""

from __future__ import annotations

from functools import cache

from starlette.responses import Response

from gateway.api.openapi import description
from gateway.server.asgi import ASGIApp
from gateway.server.http import Request

ABOUT = {
    "OpenAI": "Chat, responses, embeddings, files and batches, as OpenAI has them.",
    "Anthropic": "Messages, as Anthropic has them.",
    "Ollama": "As Ollama has it.",
    "Jina": "Ranking texts, as Jina has it.",
    "rooms": "A room is where a model works on the server: one message at a time, with tools, files and events. "
    "Rent one, send it a message, follow its events until `room:idle`, and read `agent:output`. Answers are "
    "`{success, data, error, code, message}`.",
    "ctxgate": "The gateway itself.",
}
"""Tag of the operations → what they are for, in the order of the page."""


async def show(request: Request) -> ASGIApp:
    return Response(text(), media_type="text/plain; charset=utf-8")


@cache
def text() -> str:
    """The page in Markdown."""
    whole = description()
    sections: dict[str, list[str]] = {tag: [] for tag in ABOUT}
    for path, item in whole["paths"].items():
        for method, operation in item.items():
            if isinstance(operation, dict):
                line = f"- [{method.upper()} {path}](/openapi.json): {operation['summary']}"
                sections[operation["tags"][0]].append(line)
    parts = [f"# {whole['info']['title']}\n\n> {whole['info']['description']}"]
    parts.append(
        "[/openapi.json](/openapi.json) has every request and answer as JSON Schemas, `GET /v1/models` the models."
    )
    parts += [f"## {tag[0].upper()}{tag[1:]}\n\n{about}\n\n" + "\n".join(sections[tag]) for tag, about in ABOUT.items()]
    return "\n\n".join(parts) + "\n"
