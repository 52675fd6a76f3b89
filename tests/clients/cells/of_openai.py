import json

from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, TOOL, URL, fill, said
from openai import OpenAI
from shape import Weather


def client(key=KEY):
    return OpenAI(base_url=f"{URL}/v1", api_key=key)


def ask(key, model, text, **fields):
    answer = client(key).chat.completions.create(model=model, messages=[said(text)], **fields)
    return answer.choices[0].message.content


def stream():
    with client().chat.completions.stream(model=MODEL, messages=[said(HELLO)]) as stream:
        return stream.get_final_completion().choices[0].message.content


def tools():
    chat = client().chat.completions
    first = chat.create(model=MODEL, messages=[said(QUESTION)], tools=[TOOL]).choices[0].message
    call = first.tool_calls[0]
    past = [said(QUESTION), first, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    last = chat.create(model=MODEL, messages=past, tools=[TOOL]).choices[0].message.content
    return json.loads(call.function.arguments), last


def structured():
    asked = client().chat.completions.parse(model=MODEL, messages=[said(QUESTION)], response_format=Weather)
    return asked.choices[0].message.parsed


def cancel():
    with client().chat.completions.create(model=ENDLESS, messages=[said(HELLO)], stream=True) as stream:
        next(iter(stream))


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
