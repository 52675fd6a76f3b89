import json

from openai import OpenAI
from weather import HELLO, MODEL, QUESTION, RESULT, TOOL, URL, tell

client = OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)


def said(text):
    return {"role": "user", "content": text}


plain = client.chat.completions.create(model=MODEL, messages=[said(HELLO)]).choices[0].message.content
with client.chat.completions.stream(model=MODEL, messages=[said(HELLO)]) as stream:
    streamed = stream.get_final_completion().choices[0].message.content
first = client.chat.completions.create(model=MODEL, messages=[said(QUESTION)], tools=[TOOL]).choices[0].message
call = first.tool_calls[0]
past = [said(QUESTION), first, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
last = client.chat.completions.create(model=MODEL, messages=past, tools=[TOOL]).choices[0].message.content
tell(plain, streamed, json.loads(call.function.arguments), last)
