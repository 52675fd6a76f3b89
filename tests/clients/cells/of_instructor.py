from typing import Literal

import instructor
from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, URL, fill, said
from openai import OpenAI
from shape import Weather


class get_weather(Weather):  # its name is the tool's
    """Current weather in a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


def chat(key=KEY):
    return instructor.from_openai(OpenAI(base_url=f"{URL}/v1", api_key=key)).chat.completions


def ask(key, model, text):
    answer = chat(key).create(model=model, messages=[said(text)], response_model=None)
    return answer.choices[0].message.content


def stream():
    chunks = chat().create(model=MODEL, messages=[said(HELLO)], response_model=None, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def tools():
    question = [said(QUESTION)]
    found, answer = chat().create_with_completion(model=MODEL, messages=question, response_model=get_weather)
    *_, partial = chat().create_partial(model=MODEL, messages=question, response_model=get_weather)
    assert partial.model_dump() == found.model_dump()
    message = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
    last = chat().create(model=MODEL, messages=[*question, message.model_dump(), result], response_model=None)
    return found.model_dump(), last.choices[0].message.content


def structured():
    return chat().create(model=MODEL, messages=[said(QUESTION)], response_model=Weather)


def cancel():
    with chat().create(model=ENDLESS, messages=[said(HELLO)], response_model=None, stream=True) as stream:
        next(iter(stream))


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
