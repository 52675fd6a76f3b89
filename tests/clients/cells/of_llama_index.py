import asyncio
import gc

from cells import COLLECTED, ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, URL, fill
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from shape import Weather


def chat(key=KEY, model=MODEL):
    return OpenAILike(
        model=model,
        api_base=f"{URL}/v1",
        api_key=key,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=1024,
    )


def ask(key, model, text):
    return chat(key, model).chat([ChatMessage(content=text)]).message.content


def stream():
    return "".join(chunk.delta or "" for chunk in chat().stream_chat([ChatMessage(content=HELLO)]))


def tools():
    called = {}

    def get_weather(city: str, unit: str = "celsius") -> str:
        """Current weather in a city."""
        called.update(city=city, unit=unit)
        return RESULT

    async def run():
        return str(await FunctionAgent(tools=[get_weather], llm=chat()).run(QUESTION))

    last = asyncio.run(run())
    return called, last


def structured():
    return chat().as_structured_llm(Weather).chat([ChatMessage(content=QUESTION)]).raw


def cancel():
    stream = chat(model=ENDLESS).stream_chat([ChatMessage(content=HELLO)])
    next(stream)
    stream.close()
    del stream
    gc.collect()
    return COLLECTED


fill(chat=lambda: ask(KEY, MODEL, HELLO), stream=stream, tools=tools, structured=structured, cancel=cancel, ask=ask)
