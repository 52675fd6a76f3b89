"""Files, batches and conversations."""

import json
import time

from openai import OpenAI
from weather import FUNCTION, HELLO, MODEL, QUESTION, RESULT, URL, tell

client = OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
tools = [{"type": "function", **FUNCTION}]
bodies = {"plain": {"input": HELLO}, "call": {"input": QUESTION, "tools": tools}}
lines = [
    json.dumps({"custom_id": id, "method": "POST", "url": "/v1/responses", "body": {"model": MODEL, **body}})
    for id, body in bodies.items()
]
file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.05)
    batch = client.batches.retrieve(batch.id)
assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch
answers = {}
for line in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(line)
    answers[answer["custom_id"]] = answer["response"]["body"]["output"][0]
assert list(answers) == list(bodies)
assert batch.id in [each.id for each in client.batches.list()]
assert {file.id, batch.output_file_id} <= {each.id for each in client.files.list()}
assert client.files.delete(file.id).deleted

conversation = client.conversations.create(metadata={"of": "a test"})
with client.responses.stream(model=MODEL, input=HELLO, conversation=conversation.id) as stream:
    streamed = stream.get_final_response().output_text
items = list(client.conversations.items.list(conversation.id, order="asc"))
assert [item.role for item in items] == ["user", "assistant"], items
assert client.conversations.delete(conversation.id).deleted

asked = client.conversations.create(items=[{"role": "user", "content": QUESTION}, answers["call"]])
output = {"type": "function_call_output", "call_id": answers["call"]["call_id"], "output": RESULT}
last = client.responses.create(model=MODEL, input=[output], conversation=asked.id, tools=tools)
tell(answers["plain"]["content"][0]["text"], streamed, json.loads(answers["call"]["arguments"]), last.output_text)
