from anthropic import Anthropic
from cells import DESCRIPTION, ENDLESS, HELLO, KEY, MODEL, NAME, PARAMETERS, QUESTION, RESULT, URL, fill, said
from shape import Weather

TOOLS = [{"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}]


def messages(key=KEY):
    return Anthropic(base_url=URL, api_key=key).messages


def ask(key, model, text):
    return messages(key).create(model=model, max_tokens=200, messages=[said(text)]).content[0].text


def stream():
    with messages().stream(model=MODEL, max_tokens=200, messages=[said(HELLO)]) as stream:
        return "".join(stream.text_stream)


def tools():
    assert messages().count_tokens(model=MODEL, messages=[said(HELLO)]).input_tokens > 0
    with messages().stream(model=MODEL, max_tokens=200, messages=[said(QUESTION)], tools=TOOLS) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    use = first.content[0]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
    past = [said(QUESTION), {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    return use.input, messages().create(model=MODEL, max_tokens=200, messages=past, tools=TOOLS).content[0].text


def structured():
    asked = messages().parse(model=MODEL, max_tokens=200, messages=[said(QUESTION)], output_format=Weather)
    return asked.parsed_output


def cancel():
    with messages().stream(model=ENDLESS, max_tokens=200, messages=[said(HELLO)]) as stream:
        next(iter(stream.text_stream))


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
