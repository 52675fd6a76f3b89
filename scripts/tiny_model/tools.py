"""The twelve tools that the test model knows, in OpenAI's `tools` form."""

from typing import Any

Json = dict[str, Any]

STRING: Json = {"type": "string"}
NUMBER: Json = {"type": "number"}


def _tool(name: str, description: str, properties: Json, optional: tuple[str, ...] = ()) -> Json:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": [key for key in properties if key not in optional],
            },
        },
    }


_ALL = (
    _tool(
        "get_weather",
        "Current weather in a city.",
        {"city": STRING, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        optional=("unit",),
    ),
    _tool("get_time", "Current time of day.", {}),
    _tool("add", "Add two numbers.", {"a": NUMBER, "b": NUMBER}),
    _tool("filesystem.list_dir", "List the files in a folder.", {"path": STRING}),
    _tool("filesystem.read_file", "Read a text file.", {"path": STRING}),
    _tool("search_web", "Search the web.", {"query": STRING}),
    _tool(
        "send_email",
        "Send an email.",
        {"to": {"type": "array", "items": STRING}, "subject": STRING},
    ),
    _tool("set_light", "Switch a light.", {"room": STRING, "on": {"type": "boolean"}}),
    _tool(
        "create_event",
        "Put an event into the calendar.",
        {
            "title": STRING,
            "when": {"type": "object", "properties": {"date": STRING, "time": STRING}},
            "attendees": {"type": "array", "items": STRING},
        },
        optional=("attendees",),
    ),
    _tool(
        "update_record",
        "Change fields of a record.",
        {"id": {"type": "integer"}, "fields": {"type": "object"}},
    ),
    _tool(
        "plot_points",
        "Plot points given as x and y.",
        {"points": {"type": "array", "items": {"type": "array", "items": NUMBER}}},
    ),
    _tool("run_command", "Run a shell command.", {"command": STRING}),
)

TOOLS: dict[str, Json] = {tool["function"]["name"]: tool for tool in _ALL}
