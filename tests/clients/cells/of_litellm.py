import json

import litellm
from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, TOOL, URL, fill, said
from shape import Weather

litellm.telemetry = False
litellm.suppress_debug_info = True


def completion(messages, key=KEY, model=MODEL, **fields):
    return litellm.completion(model=f"openai/{model}", api_base=f"{URL}/v1", api_key=key, messages=messages, **fields)


def ask(key, model, text):
    return completion([said(text)], key, model).choices[0].message.content


def stream():
    return "".join(chunk.choices[0].delta.content or "" for chunk in completion([said(HELLO)], stream=True))


def tools():
    first = completion([said(QUESTION)], tools=[TOOL]).choices[0].message
    call = first.tool_calls[0]
    past = [said(QUESTION), first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    last = completion(past, tools=[TOOL]).choices[0].message.content
    return json.loads(call.function.arguments), last


def structured():
    text = completion([said(QUESTION)], response_format=Weather).choices[0].message.content
    return Weather.model_validate_json(text)


def cancel():
    stream = completion([said(HELLO)], model=ENDLESS, stream=True)
    next(stream)
    stream.completion_stream.close()


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
