from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel
from weather import HELLO, MODEL, QUESTION, RESULT, URL, tell

raw = OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
client = instructor.from_openai(raw, mode=instructor.Mode.TOOLS)


class get_weather(BaseModel):  # its name is the tool's
    """Current weather in a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


def said(text):
    return {"role": "user", "content": text}


plain = client.chat.completions.create(model=MODEL, messages=[said(HELLO)], response_model=None)
plain = plain.choices[0].message.content
chunks = client.chat.completions.create(model=MODEL, messages=[said(HELLO)], response_model=None, stream=True)
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
*_, partial = client.chat.completions.create_partial(model=MODEL, messages=[said(QUESTION)], response_model=get_weather)
found, answer = client.chat.completions.create_with_completion(
    model=MODEL, messages=[said(QUESTION)], response_model=get_weather
)
assert partial.model_dump() == found.model_dump()
message = answer.choices[0].message
past = [
    said(QUESTION),
    message.model_dump(),
    {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT},
]
last = client.chat.completions.create(model=MODEL, messages=past, response_model=None).choices[0].message.content
tell(plain, streamed, found.model_dump(), last)
