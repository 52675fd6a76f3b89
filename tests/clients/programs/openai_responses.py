import json

from openai import OpenAI
from weather import FUNCTION, HELLO, MODEL, QUESTION, RESULT, URL, tell

client = OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
tools = [{"type": "function", **FUNCTION}]
plain = client.responses.create(model=MODEL, input=HELLO).output_text
with client.responses.stream(model=MODEL, input=HELLO) as stream:
    streamed = stream.get_final_response().output_text
first = client.responses.create(model=MODEL, input=QUESTION, tools=tools)
call = first.output[0]
output = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
last = client.responses.create(model=MODEL, input=[output], previous_response_id=first.id, tools=tools)
tell(plain, streamed, json.loads(call.arguments), last.output_text)
