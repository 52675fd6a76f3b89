import gc
import os
from pathlib import Path

from cells import ABSENT, COLLECTED, ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, URL, fill
from shape import Weather

folder = Path(os.environ["LLM_USER_PATH"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "extra-openai-models.yaml").write_text(
    "".join(
        f"- model_id: {name}\n  model_name: {name}\n  api_base: {URL}/v1\n  api_key_name: ctxgate\n"
        "  supports_tools: true\n  supports_schema: true\n"
        for name in (MODEL, ENDLESS, ABSENT)
    )
)

import llm  # noqa: E402  # it reads the file above


def model(name=MODEL, key=KEY):
    found = llm.get_model(name)
    found.key = key
    return found


def ask(key, name, text):
    return model(name, key).prompt(text, stream=False).text()


def stream():
    return "".join(model().prompt(HELLO, stream=True))


def tools():
    called = {}

    def get_weather(city: str, unit: str = "celsius") -> str:
        """Current weather in a city."""
        called.update(city=city, unit=unit)
        return RESULT

    last = model().chain(QUESTION, tools=[get_weather]).text()
    return called, last


def structured():
    return Weather.model_validate_json(model().prompt(QUESTION, schema=Weather).text())


def cancel():
    pieces = iter(model(ENDLESS).prompt(HELLO, stream=True))
    next(pieces)
    pieces.close()
    del pieces
    gc.collect()
    return COLLECTED


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
