"""Synthetic conversations for the test model: requests, calls, tool results and plain chat, from a seed alone."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from .dialect import Call, Conversation, Message
from .requests import CATEGORY_OF_TOOL, REQUESTS, Category
from .tools import TOOLS
from .values import KEYS, Values

NO_TOOL = "I have no tool for that."
UNKNOWN = "I do not know that."
STORY = (
    "Once upon a time there was a tiny model that lived in a small file. It had few weights and knew few words, but it "
    "answered every question it was given. In the morning it said hello. At noon it called its tools. In the evening "
    "it counted the stars, one by one, until all lights were off. Then it slept, and nobody had to wait for it. "
    "The end."
)
CHAT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hi", "Hey there", "Good morning", "hello there", "hi", "hello", "Hey"), "Hello! How can I help you?"),
    (("Who are you", "What are you", "Introduce yourself"), "I am a tiny test model."),
    (("Thanks", "Thank you", "Thanks a lot", "thank you very much"), "You are welcome."),
    (("What can you do", "Help", "How can you help me"), "I can chat a little and call tools."),
    (("How are you", "How are you today", "How do you do"), "I am fine, thank you."),
    (("Goodbye", "Bye", "See you later", "Good night"), "Goodbye!"),
    (("Ping", "ping"), "pong"),
    (("Tell me a joke", "A joke please", "Make me laugh"), "Why did the byte cross the bus? To get to the other side."),
)
STORY_PROMPTS = ("Tell me a story", "Write a long story", "Write a long text", "Tell me a long story", "Write a story")
UNANSWERABLE = (
    "Who wrote {}?",
    "What is the capital of {}?",
    "Why is {} so big?",
    "When was {} born?",
    "Explain {} to me",
    "How does {} work?",
    "What does {} mean?",
    "Who is {}?",
    "Translate {} into French",
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Use the tools when they fit.",
    "Be brief.",
    "You are a test model.",
    "Answer in one sentence.",
    "You are an assistant with access to tools.",
)


def _polite(values: Values, text: str) -> str:
    if values.chance(0.08):
        return "Please " + text[0].lower() + text[1:]
    if values.chance(0.08) and text[-1] not in "?./'\"":
        return text + " please"
    return text


def _request(values: Values, name: str) -> tuple[str, Call]:
    text, arguments = REQUESTS[name](values)
    return text, Call(name, arguments)


def _chat(values: Values) -> tuple[str, str, Category]:
    draw = values.random.random()
    if draw < 0.3:
        prompts, answer = values.random.choice(CHAT)
        return values.random.choice(prompts) + values.random.choice(("", "", ".", "!", "?")), answer, "chat"
    if draw < 0.55:
        words = values.phrase(5)
        if values.chance(0.3):
            words = words.capitalize() + values.random.choice((".", "!", ""))
        prompt = values.random.choice(("Say {}", "Say: {}", "Repeat after me: {}", "Say exactly: {}", "Repeat: {}"))
        return prompt.format(words), words, "chat"
    if draw < 0.75:
        first = 1 if values.chance(0.7) else values.random.randint(1, 40)
        last = first + values.random.choice((2, 4, 9, values.random.randint(1, 30), values.random.randint(10, 60)))
        prompt = "Count to {last}" if first == 1 and values.chance(0.5) else "Count from {first} to {last}"
        counted = ", ".join(map(str, range(first, last + 1)))
        return prompt.format(first=first, last=last) + values.random.choice(("", ".")), counted + ".", "long"
    if draw < 0.82:
        return values.random.choice(STORY_PROMPTS) + values.random.choice(("", ".")), STORY, "long"
    subject = values.known_or_word(("Hamlet", "France", "the moon", "gravity", "the sun", "Italy", "music"), 0.4)
    return values.random.choice(UNANSWERABLE).format(subject), UNKNOWN, "chat"


def _result(values: Values) -> tuple[str, str]:
    """A tool's result and how the answer speaks of it."""
    draw = values.random.random()
    value: str | int | float = values.phrase(2) if values.chance(0.5) else values.number()
    if draw < 0.45:
        return json.dumps({values.known_or_word(KEYS, 0.8): value}, ensure_ascii=False), f"The result is {value}."
    if draw < 0.6:
        return str(value), f"The result is {value}."
    if draw < 0.75:
        names = [values.file_name() for _ in range(values.random.randint(1, 4))]
        return json.dumps(names), f"The result is {', '.join(names)}."
    if draw < 0.9:
        pair = {
            key: values.phrase(1) if values.chance(0.5) else values.number() for key in values.random.sample(KEYS, 2)
        }
        said = ", ".join(f"{key} {item}" for key, item in pair.items())
        return json.dumps(pair, ensure_ascii=False), f"The result is {said}."
    reason = values.phrase(3)
    return json.dumps({"error": reason}, ensure_ascii=False), f"The tool failed: {reason}."


def _listed(values: Values, names: list[str]) -> tuple[dict[str, Any], ...]:
    """The tools as callers write them: mostly as documented, sometimes reworded, trimmed or with strangers between."""
    style = values.random.random()
    tools: list[dict[str, Any]] = []
    for name in names:
        function = dict(TOOLS[name]["function"])
        if style < 0.15:
            function.pop("description")
        elif style < 0.35:
            function["description"] = values.title() + "."
            parameters = dict(function["parameters"])
            parameters["properties"] = {
                key: {**schema, "description": values.title()} if values.chance(0.5) else schema
                for key, schema in parameters["properties"].items()
            }
            if not parameters["required"] or values.chance(0.2):
                parameters.pop("required")
            function["parameters"] = parameters
        elif style < 0.45:  # as pydantic-made tools look
            parameters = dict(function["parameters"])
            parameters["properties"] = {
                key: {**schema, "title": key.capitalize()} for key, schema in parameters["properties"].items()
            }
            function["parameters"] = {**parameters, "additionalProperties": False}
            function["strict"] = True
        tools.append({"type": "function", "function": function})
    if values.chance(0.1):
        properties = {values.word(): {"type": values.random.choice(("string", "integer", "boolean"))}}
        stranger = {"name": values.word(), "parameters": {"type": "object", "properties": properties}}
        tools.insert(values.random.randint(0, len(tools)), {"type": "function", "function": stranger})
    return tuple(tools)


def _turn(values: Values, names: list[str]) -> tuple[list[Message], list[Category]]:
    """One user message and what follows it, given the names of the tools at hand."""
    draw = values.random.random()
    missing = [name for name in TOOLS if name not in names]
    calls: tuple[Call, ...]
    category: Category
    if names and draw < 0.5:
        text, call = _request(values, values.random.choice(names))
        calls, category = (call,), CATEGORY_OF_TOOL.get(call.name, "single")
    elif len(names) > 1 and draw < 0.66:
        first, second = values.random.sample(names, 2) if values.chance(0.75) else [values.random.choice(names)] * 2
        text, call = _request(values, first)
        more, another = _request(values, second)
        link = values.random.choice((" and also ", " and ", ". Then ", ". Also "))
        text = text.rstrip("?.") + link + (more if link[0] == "." else more[0].lower() + more[1:])
        calls, category = (call, another), "parallel"
    elif names and draw < 0.71:
        text, call = _request(values, values.random.choice(names))
        before, after = values.random.choice(((True, False), (True, False), (False, True), (True, True)))
        wish = "Announce the call" + (" and confirm it" if after else "") if before else "Confirm the call"
        message = Message(
            "assistant",
            text=f"I will call {call.name}." if before else "",
            calls=(call,),
            after=f"I called {call.name}." if after else "",
        )
        return [Message("user", f"{wish}: {text}"), message], ["around"]
    elif missing and draw < (0.88 if names else 0.4):
        text, _ = _request(values, values.random.choice(missing))
        return [Message("user", _polite(values, text)), Message("assistant", NO_TOOL)], ["no_tool"]
    else:
        text, answer, category = _chat(values)
        return [Message("user", text), Message("assistant", answer)], [category]

    messages = [Message("user", _polite(values, text)), Message("assistant", calls=calls)]
    categories: list[Category] = [category]
    if values.chance(0.35):
        results = [_result(values) for _ in calls]
        messages += [Message("tool", body) for body, _ in results]
        messages.append(Message("assistant", " ".join(said for _, said in results)))
        categories.append("result")
    return messages, categories


def conversation(values: Values, turns: int | None = None) -> Conversation:
    names: list[str] = []
    if values.chance(0.88):
        count = values.random.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, values.random.randint(7, len(TOOLS))))
        names = values.random.sample(list(TOOLS), count)
    messages: list[Message] = []
    categories: list[Category] = []
    if values.chance(0.35):
        messages.append(
            Message("system", values.random.choice(SYSTEM_PROMPTS) if values.chance(0.7) else values.title())
        )
    for _ in range(turns or values.random.choice((1, 1, 1, 2, 2, 3, 4))):
        more, shown = _turn(values, names)
        messages += more
        categories += shown
    return Conversation(
        messages=tuple(messages),
        tools=_listed(values, names) if names else (),
        categories=tuple(categories),
        sort_keys=values.chance(0.15),
        json_arguments=values.chance(0.12),
    )


def conversations(seed: int, held_out: bool = False, turns: int | None = None) -> Iterator[Conversation]:
    """Endless; the same seed gives the same conversations."""
    values = Values(Random(seed), held_out)
    while True:
        yield conversation(values, turns)
