"""Tools of which a request allows some, and engines that call them all the same."""

from __future__ import annotations

from typing import Any

from tests.gateway.double import Exchange, Json, Script, chunk, completion


def tool(name: str) -> Json:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def named(*names: str) -> list[Json]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def allowing(*names: str, **more: Any) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named(*names), **more}}


TOOLS = [tool("get_weather"), tool("rm"), tool("ls")]
HERMES = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def says(*answers: tuple[str, list[tuple[str, str]]]) -> Script:
    """A script that gives these answers in turn: a text, and calls that the engine parsed itself."""
    left = [*answers]

    async def script(exchange: Exchange) -> None:
        text, calls = left.pop(0) if len(left) > 1 else left[0]
        made = [
            {"index": at, "id": f"c{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls)
        ]
        if not exchange.json.get("stream"):
            message: Json = {"tool_calls": made} if made else {}
            await exchange.whole(completion(text, **message))
            return
        await exchange.start()
        await exchange.event(chunk("", role="assistant"))
        for letter in text:
            await exchange.event(chunk(letter))
        for call in made:
            await exchange.event(chunk(tool_calls=[call]))
        await exchange.event(chunk(reason="tool_calls" if made else "stop"))
        await exchange.end()

    return script


def wrote(format: str, *calls: tuple[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """An answer with these calls: in its text, or as the engine parsed them."""
    if format == "native_json":
        return "", [*calls]
    return "".join(HERMES.format(name, arguments) for name, arguments in calls), []
