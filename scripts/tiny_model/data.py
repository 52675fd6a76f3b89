"""Synthetic conversations for the test model: requests, calls, tool results and plain chat, from a seed alone."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Literal

from .dialect import Call, Conversation, Message
from .tools import TOOLS
from .values import FIELDS, KEYS, ROOMS, Values

Category = Literal[
    "single", "dotted", "nested", "no_argument", "quoted", "parallel", "around", "result", "no_tool", "chat", "long"
]
Request = tuple[str, dict[str, Any]]

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
GUESTS = ("alice", "bob", "carol", "dave", "ann", "tom")
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


def _weather(values: Values) -> Request:
    city, unit = values.city(), values.random.choice((None, None, "celsius", "fahrenheit"))
    text = values.random.choice(
        (
            "What is the weather in {}",
            "What's the weather like in {}",
            "What is the weather like in {}",
            "Weather in {}",
            "How is the weather in {}",
            "Tell me the weather in {}",
            "Is it raining in {}",
            "Get the weather for {}",
            "How warm is it in {}",
        )
    ).format(city)
    if unit is None:
        return text + values.random.choice(("?", "?", "", ".", " today?")), {"city": city}
    return text + values.random.choice((" in ", " in ", " using ")) + unit + values.random.choice(
        ("?", "?", "", ".")
    ), {"city": city, "unit": unit}


def _time(values: Values) -> Request:
    return values.random.choice(
        ("What time is it?", "What is the time?", "Tell me the time", "Current time please", "What time is it now?")
    ), {}


def _add(values: Values) -> Request:
    a, b = values.number(), values.number()
    text = values.random.choice(
        ("Add {} and {}", "What is {} plus {}?", "{} + {}", "Sum of {} and {}", "Compute {} + {}", "What is {} + {}?")
    )
    return text.format(a, b), {"a": a, "b": b}


def _list_dir(values: Values) -> Request:
    path = values.folder()
    text = values.random.choice(
        (
            "List the files in {}",
            "List {}",
            "What is in {}?",
            "Show the folder {}",
            "Which files are in {}?",
            "Show me what is in {}",
            "List the directory {}",
            "ls {}",
        )
    )
    return text.format(path), {"path": path}


def _read_file(values: Values) -> Request:
    path = values.file()
    text = values.random.choice(
        ("Read {}", "Read the file {}", "Open {}", "Show the text of {}", "What does {} say?", "Show me the file {}")
    )
    return text.format(path), {"path": path}


def _search(values: Values) -> Request:
    query = values.phrase()
    text = values.random.choice(
        ("Search the web for {}", "Look up {}", "Search for {}", "Find information about {}", "Google {}")
    )
    return text.format(query), {"query": query}


def _email(values: Values) -> Request:
    to = [values.email() for _ in range(values.random.choice((1, 1, 2, 2, 3)))]
    subject = values.phrase(3)
    text = values.random.choice(
        ("Send an email to {} about {}", "Email {} about {}", "Write to {} about {}", "Send a mail to {} about {}")
    )
    return text.format(" and ".join(to), subject), {"to": to, "subject": subject}


def _light(values: Values) -> Request:
    room, on = values.known_or_word(ROOMS, 0.6), values.chance(0.5)
    text = values.random.choice(
        (
            "Turn {on} the light in the {room}",
            "Turn {on} the {room} light",
            "Turn the {room} light {on}",
            "Switch {on} the light in the {room}",
            "Switch the {room} light {on}",
        )
    )
    return text.format(room=room, on="on" if on else "off"), {"room": room, "on": on}


def _event(values: Values) -> Request:
    title, date, clock = values.title(), values.date(), values.clock()
    text = values.random.choice(
        (
            'Create an event "{}" on {} at {}',
            'Schedule "{}" on {} at {}',
            'Plan "{}" for {} at {}',
            'Put "{}" into the calendar on {} at {}',
        )
    ).format(title, date, clock)
    arguments: dict[str, Any] = {"title": title, "when": {"date": date, "time": clock}}
    if values.chance(0.6):
        arguments["attendees"] = [values.known_or_word(GUESTS, 0.6)]
        while len(arguments["attendees"]) < 3 and values.chance(0.6):
            arguments["attendees"].append(values.word())
        text += " with " + " and ".join(arguments["attendees"])
    return text, arguments


def _record(values: Values) -> Request:
    fields: dict[str, Any] = {}
    for name in values.random.sample(FIELDS, values.random.randint(1, 3)):
        match values.random.randint(0, 4):
            case 0:
                fields[name] = values.chance(0.5)
            case 1:
                fields[name] = None
            case 2:
                fields[name] = values.number()
            case _:
                fields[name] = values.phrase(2)
    number = values.integer()
    said = ", ".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        if values.chance(0.5)
        else f"{name} to {json.dumps(value, ensure_ascii=False)}"
        for name, value in fields.items()
    )
    text = values.random.choice(("Update record {}: {}", "Change record {}: {}", "In record {} set {}"))
    return text.format(number, said), {"id": number, "fields": fields}


def _points(values: Values) -> Request:
    points = [[values.number() for _ in range(2)] for _ in range(values.random.randint(1, 4))]
    said = values.random.choice((" and ", ", ")).join(f"({x}, {y})" for x, y in points)
    text = values.random.choice(("Plot the points {}", "Plot {}", "Draw the points {}"))
    return text.format(said), {"points": points}


def _command(values: Values) -> Request:
    command = values.command()
    text = values.random.choice(("Run {}", "Run the command {}", "Run the command: {}", "Execute {}"))
    return text.format(command), {"command": command}


REQUESTS: dict[str, Callable[[Values], Request]] = {
    "get_weather": _weather,
    "get_time": _time,
    "add": _add,
    "filesystem.list_dir": _list_dir,
    "filesystem.read_file": _read_file,
    "search_web": _search,
    "send_email": _email,
    "set_light": _light,
    "create_event": _event,
    "update_record": _record,
    "plot_points": _points,
    "run_command": _command,
}
CATEGORY_OF_TOOL: dict[str, Category] = {
    "get_time": "no_argument",
    "filesystem.list_dir": "dotted",
    "filesystem.read_file": "dotted",
    "send_email": "nested",
    "create_event": "nested",
    "update_record": "nested",
    "plot_points": "nested",
    "run_command": "quoted",
}


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
