from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, TOOL, URL, fill
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from shape import Weather


def chat(key=KEY, model=MODEL):
    return ChatOpenAI(model=model, base_url=f"{URL}/v1", api_key=key, stream_usage=True)


def ask(key, model, text):
    return chat(key, model).invoke(text).content


def stream():
    return "".join(chunk.content for chunk in chat().stream(HELLO))


def tools():
    able = chat().bind_tools([TOOL])
    first = able.invoke([HumanMessage(QUESTION)])
    call = first.tool_calls[0]
    past = [HumanMessage(QUESTION), first, ToolMessage(RESULT, tool_call_id=call["id"])]
    return call["args"], able.invoke(past).content


def structured():
    return chat().with_structured_output(Weather).invoke(QUESTION)


def cancel():
    stream = chat(model=ENDLESS).stream(HELLO)
    next(stream)
    stream.close()


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
