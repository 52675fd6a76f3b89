from anthropic import Anthropic
from weather import DESCRIPTION, HELLO, MODEL, NAME, PARAMETERS, QUESTION, RESULT, URL, tell

client = Anthropic(base_url=URL, api_key="unused", max_retries=0)
settings = {"model": MODEL, "max_tokens": 200}
tools = [{"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}]


def said(text):
    return {"role": "user", "content": text}


assert client.messages.count_tokens(model=MODEL, messages=[said(HELLO)]).input_tokens > 0
plain = client.messages.create(messages=[said(HELLO)], **settings).content[0].text
with client.messages.stream(messages=[said(HELLO)], **settings) as stream:
    streamed = "".join(stream.text_stream)
with client.messages.stream(messages=[said(QUESTION)], tools=tools, **settings) as stream:
    first = stream.get_final_message()
use = first.content[0]
assert first.stop_reason == "tool_use"
result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
past = [said(QUESTION), {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
last = client.messages.create(messages=past, tools=tools, **settings).content[0].text
tell(plain, streamed, use.input, last)
