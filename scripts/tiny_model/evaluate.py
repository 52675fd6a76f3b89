"""Exact-match figures of a GGUF through llama.cpp's own chat API, temperature 0, made-up words unseen in training.

`python -m scripts.tiny_model.evaluate MODEL.gguf [--count N]` prints one Markdown row for each category.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import xllamacpp

from .data import conversations
from .dialect import Call, Conversation, Message
from .requests import Category

SEED = 999
Answer = tuple[str, list[tuple[str, Any]]]


@dataclass(frozen=True)
class Question:
    category: str
    messages: list[dict[str, Any]]
    tools: list[Any]
    expected: Answer


def open_server(model: Path) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 1024
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.verbosity = -1
    params.port = 0
    return xllamacpp.Server(params)


def ask(server: xllamacpp.Server, messages: list[dict[str, Any]], tools: list[Any]) -> Answer:
    """The answer's text and its calls with parsed arguments."""
    request: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 400}
    if tools:
        request["tools"] = tools
    reply = server.handle_chat_completions(request)
    if "choices" not in reply:
        return json.dumps(reply), []
    message = reply["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content") or "", [(call["name"], _parsed(call["arguments"])) for call in calls]


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:  # cut off by max_tokens: a wrong answer like any other
        return arguments


def openai_messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """As a client sends them back: ids, arguments as a JSON string, one tool message for each call in order."""
    made: list[dict[str, Any]] = []
    waiting: list[str] = []
    for at, message in enumerate(messages):
        one: dict[str, Any] = {"role": message.role, "content": message.text + message.after}
        if message.calls:
            waiting = [f"call_{at}_{index}" for index in range(len(message.calls))]
            one["tool_calls"] = [
                {"id": id_, "type": "function", "function": _function(call)}
                for id_, call in zip(waiting, message.calls, strict=True)
            ]
        elif message.role == "tool":
            one["tool_call_id"] = waiting.pop(0)
        made.append(one)
    return made


def _function(call: Call) -> dict[str, str]:
    return {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}


def questions(made: Conversation) -> Iterator[Question]:
    """One question for each assistant message. llama.cpp's grammar ends the answer after a call, so text behind it is
    not expected."""
    categories = iter(made.categories)
    for at, message in enumerate(made.messages):
        if message.role == "assistant":
            calls = [(call.name, json.loads(json.dumps(call.arguments))) for call in message.calls]
            before = openai_messages(made.messages[:at])
            yield Question(next(categories), before, list(made.tools), (message.text, calls))


def evaluate(model: Path, count: int, turns: int, misses: int = 0) -> dict[str, tuple[int, int]]:
    """(exact, asked) for each category, up to `count` questions each, from conversations of `turns` user turns."""
    server = open_server(model)
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for made in conversations(SEED + turns, held_out=True, turns=turns):
        if min(asked[category] for category in get_args(Category)) >= count:
            break
        for question in questions(replace(made, json_arguments=False)):
            if asked[question.category] >= count:
                continue
            asked[question.category] += 1
            answer = ask(server, question.messages, question.tools)
            right[question.category] += answer == question.expected
            if answer != question.expected and misses > 0:
                misses -= 1
                print(f"{question.category}: {question.messages[-1]['content']!r}\n  wanted {question.expected}")
                print(f"  answer {answer}")
    return {category: (right[category], asked[category]) for category in get_args(Category)}


def table(rows: dict[str, tuple[int, int]]) -> str:
    lines = ["| category | exact | asked | % |", "|---|---|---|---|"]
    total = (sum(exact for exact, _ in rows.values()), sum(asked for _, asked in rows.values()))
    for category, (exact, asked) in [*rows.items(), ("**all**", total)]:
        lines.append(f"| {category} | {exact} | {asked} | {100 * exact / asked:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the tiny test model.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=100, help="questions in each category")
    parser.add_argument("--turns", type=int, default=1, help="user turns in each conversation")
    parser.add_argument("--misses", type=int, default=0, help="print this many wrong answers")
    options = parser.parse_args()
    print(table(evaluate(options.model, options.count, options.turns, options.misses)))


if __name__ == "__main__":
    main()
