from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from weather import HELLO, MODEL, QUESTION, RESULT, TOOL, URL, tell

model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="unused", max_retries=0, stream_usage=True)
plain = model.invoke(HELLO).content
streamed = "".join(chunk.content for chunk in model.stream(HELLO))
able = model.bind_tools([TOOL])
first = able.invoke([HumanMessage(QUESTION)])
call = first.tool_calls[0]
last = able.invoke([HumanMessage(QUESTION), first, ToolMessage(RESULT, tool_call_id=call["id"])]).content
tell(plain, streamed, call["args"], last)
