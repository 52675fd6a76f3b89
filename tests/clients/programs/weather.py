"""What each program does: a plain turn, a streamed one, a tool round trip. Its last line says what came of it."""

from __future__ import annotations

import json
import sys

URL = sys.argv[1] if len(sys.argv) > 1 else ""
MODEL = "tiny"
HELLO = "Hello"
QUESTION = "What is the weather in Paris in celsius?"
RESULT = '{"temp_c": 21}'
NAME, DESCRIPTION = "get_weather", "Current weather in a city."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["city"],
}
FUNCTION = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}


def tell(plain: str, streamed: str, called: object, result: str) -> None:
    print(json.dumps({"plain": plain, "streamed": streamed, "called": called, "result": result}))
