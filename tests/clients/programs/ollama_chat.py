from ollama import Client
from weather import HELLO, MODEL, QUESTION, RESULT, TOOL, URL, tell

client = Client(host=URL)


def said(text):
    return {"role": "user", "content": text}


plain = client.chat(model=MODEL, messages=[said(HELLO)]).message.content
streamed = "".join(part.message.content for part in client.chat(model=MODEL, messages=[said(HELLO)], stream=True))
first = client.chat(model=MODEL, messages=[said(QUESTION)], tools=[TOOL]).message
call = first.tool_calls[0].function
result = {"role": "tool", "tool_name": call.name, "content": RESULT}
last = client.chat(model=MODEL, messages=[said(QUESTION), first, result], tools=[TOOL]).message.content
tell(plain, streamed, dict(call.arguments), last)
