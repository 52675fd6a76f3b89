import json

import litellm
from weather import HELLO, MODEL, QUESTION, RESULT, TOOL, URL, tell

litellm.telemetry = False
settings = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "unused", "num_retries": 0}


def said(text):
    return {"role": "user", "content": text}


plain = litellm.completion(messages=[said(HELLO)], **settings).choices[0].message.content
chunks = litellm.completion(messages=[said(HELLO)], stream=True, **settings)
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
first = litellm.completion(messages=[said(QUESTION)], tools=[TOOL], **settings).choices[0].message
call = first.tool_calls[0]
past = [said(QUESTION), first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
last = litellm.completion(messages=past, tools=[TOOL], **settings).choices[0].message.content
tell(plain, streamed, json.loads(call.function.arguments), last)
