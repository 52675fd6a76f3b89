from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, TOOL, URL, fill, said
from ollama import Client
from shape import Weather


def client(key=KEY):
    return Client(host=URL, headers={"Authorization": f"Bearer {key}"})


def ask(key, model, text):
    return client(key).chat(model=model, messages=[said(text)]).message.content


def stream():
    return "".join(part.message.content for part in client().chat(model=MODEL, messages=[said(HELLO)], stream=True))


def tools():
    first = client().chat(model=MODEL, messages=[said(QUESTION)], tools=[TOOL]).message
    call = first.tool_calls[0].function
    past = [said(QUESTION), first, {"role": "tool", "tool_name": call.name, "content": RESULT}]
    return dict(call.arguments), client().chat(model=MODEL, messages=past, tools=[TOOL]).message.content


def structured():
    schema = Weather.model_json_schema()
    answer = client().chat(model=MODEL, messages=[said(QUESTION)], format=schema)
    return Weather.model_validate_json(answer.message.content)


def cancel():
    stream = client().chat(model=ENDLESS, messages=[said(HELLO)], stream=True)
    next(stream)
    stream.close()


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
