"""What a user says to want a tool, and the arguments that the call must have."""

import json
from collections.abc import Callable
from typing import Any, Literal

from .values import FIELDS, ROOMS, Values

Category = Literal[
    "single", "dotted", "nested", "no_argument", "quoted", "parallel", "around", "result", "no_tool", "chat", "long"
]
Request = tuple[str, dict[str, Any]]

GUESTS = ("alice", "bob", "carol", "dave", "ann", "tom")


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
