import gc
import json

from cells import COLLECTED, ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, URL, fill, said
from shape import JSON_SCHEMA, Weather
from smolagents import OpenAIModel, tool
from smolagents.models import ChatMessage, MessageRole


@tool
def get_weather(city: str, unit: str) -> str:
    """Current weather in a city.

    Args:
        city: its name.
        unit: celsius or fahrenheit.
    """
    return RESULT


def model(name=MODEL, key=KEY):
    return OpenAIModel(model_id=name, api_base=f"{URL}/v1", api_key=key)


def ask(key, name, text):
    return model(name, key).generate([said(text)]).content


def stream():
    return "".join(delta.content or "" for delta in model().generate_stream([said(HELLO)]))


def tools():
    able = model()
    first = able.generate([said(QUESTION)], tools_to_call_from=[get_weather])
    function = first.tool_calls[0].function
    arguments = json.loads(function.arguments) if isinstance(function.arguments, str) else function.arguments
    past = [said(QUESTION), first, ChatMessage(MessageRole.TOOL_RESPONSE, get_weather(**arguments))]
    last = able.generate(past).content
    return arguments, last, "it sends a tool's result as the user's words, which the test model wasn't trained on"


def structured():
    return Weather.model_validate_json(model().generate([said(QUESTION)], response_format=JSON_SCHEMA).content)


def cancel():
    stream = model(ENDLESS).generate_stream([said(HELLO)])
    next(stream)
    stream.close()
    del stream
    gc.collect()
    return COLLECTED


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
