"""`/llms.txt`: what the gateway serves, for language models to read (llmstxt.org). Made from `/openapi.json`."""

from __future__ import annotations

from functools import cache

from starlette.responses import Response

from gateway.features.descriptions.openapi import description, parts
from gateway.server.asgi import ASGIApp
from gateway.server.http import Request

ABOUT = {
    "OpenAI": "Chat, responses, embeddings, files and batches, as OpenAI has them.",
    "Anthropic": "Messages, as Anthropic has them.",
    "Ollama": "As Ollama has it.",
    "Jina": "Ranking texts, as Jina has it.",
    "ctxgate": "The gateway itself.",
}
"""Tag of the APIs' operations → what they are for, in the order of the page. Those of features come after."""


async def show(request: Request) -> ASGIApp:
    return Response(text(), media_type="text/plain; charset=utf-8")


@cache
def text() -> str:
    """The page in Markdown."""
    whole = description()
    tags = dict(ABOUT)
    for part in parts():
        for tag, about in getattr(part, "ABOUT", {}).items():
            tags.setdefault(tag, about)
    sections: dict[str, list[str]] = {tag: [] for tag in tags}
    for path, item in whole["paths"].items():
        for method, operation in item.items():
            if isinstance(operation, dict):
                line = f"- [{method.upper()} {path}](/openapi.json): {operation['summary']}"
                tag = next((tag for tag in operation.get("tags", ()) if tag in sections), "ctxgate")
                sections[tag].append(line)
    paragraphs = [f"# {whole['info']['title']}\n\n> {whole['info']['description']}"]
    paragraphs.append(
        "[/openapi.json](/openapi.json) has every request and answer as JSON Schemas, `GET /v1/models` the models."
    )
    for tag, about in tags.items():
        paragraphs.append(f"## {tag[0].upper()}{tag[1:]}\n\n{about}\n\n" + "\n".join(sections[tag]))
    return "\n\n".join(paragraphs) + "\n"
