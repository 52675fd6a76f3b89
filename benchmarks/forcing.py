"""How far a forced form carries: 20 requests, 6 tools, a model that was never trained to call any.

`python -m benchmarks.forcing [MODEL ...]`, models of _models/config.yaml whose engine is llama.cpp. Counts answers
that are one well-formed call of a declared tool with arguments that fit its schema, those that call the right tool,
and those whose arguments are all right as well: left to the model (`auto`), and forced by a grammar (`required`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from msgspec.structs import replace

from gateway.config import Config, load
from gateway.core import Gateway
from gateway.errors import GatewayError
from gateway.wire.chat import ChatRequest

ROOT = Path(__file__).parents[1]
FORMATS = ("pythonic", "hermes")

Json = dict[str, Any]


def _tool(name: str, description: str, required: Mapping[str, Json], **optional: Json) -> Json:
    parameters = {"type": "object", "properties": {**required, **optional}, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TEXT: Json = {"type": "string"}
TOOLS = [
    _tool("get_weather", "Current weather in a city.", {"city": TEXT}),
    _tool("set_timer", "Start a timer.", {"minutes": {"type": "integer", "minimum": 1, "maximum": 600}}),
    _tool("send_message", "Send a message to a person.", {"to": TEXT, "text": TEXT}),
    _tool("play_music", "Play music of an artist.", {"artist": TEXT}),
    _tool("convert_money", "Convert money.", {"amount": {"type": "number"}, "source": TEXT, "target": TEXT}),
    _tool("search_files", "Find files by a word in their names.", {"word": TEXT}),
]

CASES: tuple[tuple[str, str, Json], ...] = (
    ("What is the weather like in Oslo?", "get_weather", {"city": "Oslo"}),
    ("Do I need an umbrella in Lisbon today?", "get_weather", {"city": "Lisbon"}),
    ("How hot is it in Cairo right now?", "get_weather", {"city": "Cairo"}),
    ("Tell me the weather in Toronto.", "get_weather", {"city": "Toronto"}),
    ("Set a timer for 12 minutes.", "set_timer", {"minutes": 12}),
    ("Wake me in 45 minutes.", "set_timer", {"minutes": 45}),
    ("Remind me about the pasta in 8 minutes.", "set_timer", {"minutes": 8}),
    ("Send Anna the message: I am late.", "send_message", {"to": "Anna", "text": "I am late."}),
    ("Write to Tom: see you tomorrow.", "send_message", {"to": "Tom", "text": "see you tomorrow."}),
    ("Tell Maria that lunch is ready.", "send_message", {"to": "Maria", "text": "lunch is ready"}),
    ("Play something by Nina Simone.", "play_music", {"artist": "Nina Simone"}),
    ("I want to hear Mozart.", "play_music", {"artist": "Mozart"}),
    ("Put on some Miles Davis, please.", "play_music", {"artist": "Miles Davis"}),
    ("Convert 100 euros to dollars.", "convert_money", {"amount": 100, "source": "euros", "target": "dollars"}),
    ("How much is 50 pounds in yen?", "convert_money", {"amount": 50, "source": "pounds", "target": "yen"}),
    ("Change 20 dollars into francs.", "convert_money", {"amount": 20, "source": "dollars", "target": "francs"}),
    ("Find all files named invoice.", "search_files", {"word": "invoice"}),
    ("Where is my file called budget?", "search_files", {"word": "budget"}),
    ("Search my files for holiday.", "search_files", {"word": "holiday"}),
    ("Look for files with report in the name.", "search_files", {"word": "report"}),
)
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@dataclass
class Score:
    formed: int = 0
    right_tool: int = 0
    exact: int = 0
    cut: int = 0
    seconds: list[float] = field(default_factory=list)

    def row(self, *names: str) -> str:
        median = statistics.median(self.seconds)
        counts = (self.formed, self.right_tool, self.exact, self.cut)
        return "| " + " | ".join([*names, *(f"{count} of {len(CASES)}" for count in counts), f"{median:.2f}"]) + " |"


async def measure(gateway: Gateway, model: str, choice: str) -> Score:
    score = Score()
    for prompt, name, arguments in CASES:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "tools": TOOLS,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 128,
        }
        began = time.perf_counter()
        try:
            with await gateway.chat(ChatRequest.parse(json.dumps(body).encode())) as run:
                (answer,) = json.loads(await run.whole())["choices"]
        except GatewayError as error:
            print(f"{model}, {prompt!r}: {error}")
            continue
        score.seconds.append(time.perf_counter() - began)
        score.cut += answer["finish_reason"] == "length"
        calls: list[Json] = answer["message"].get("tool_calls") or []
        if len(calls) != 1 or answer["finish_reason"] == "length":
            continue
        called, given = calls[0]["function"]["name"], json.loads(calls[0]["function"]["arguments"])
        if called not in SCHEMAS or not jsonschema.Draft202012Validator(SCHEMAS[called]).is_valid(given):
            continue
        score.formed += 1
        score.right_tool += called == name
        score.exact += called == name and _plain(given) == _plain(arguments)
    return score


def _plain(arguments: Json) -> Json:
    """Case and a full stop aside."""
    return {k: v.lower().rstrip(".") if isinstance(v, str) else v for k, v in arguments.items()}


async def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.forcing", description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2-135m-instruct"], metavar="MODEL")
    parser.add_argument("--config", type=Path, default=ROOT / "_models/config.yaml")
    args = parser.parse_args()
    config = load(args.config)
    print("| model | format | tool_choice | well-formed | right tool | and right arguments | cut | s, median |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in args.models:
        for format in FORMATS:
            model = replace(config.resolve(name), tool_call_format=format, defaults={})
            one = Config(source=config.source, active_model=name, models={name: model})
            async with Gateway(one) as gateway:
                for choice in ("auto", "required"):
                    print((await measure(gateway, name, choice)).row(name, format, f"`{choice}`"), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
