import asyncio
from typing import Literal

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, URL, fill
from openai import AsyncOpenAI
from shape import Weather

set_tracing_disabled(True)


def agent(model=MODEL, key=KEY, **more):
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=key)
    return Agent(name="tiny", model=OpenAIResponsesModel(model, client), **more)


def ask(key, model, text):
    return Runner.run_sync(agent(model, key), text).final_output


async def pieces(running):
    async for event in running.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta


async def streamed():
    return "".join([piece async for piece in pieces(Runner.run_streamed(agent(), HELLO))])


def tools():
    called = {}

    @function_tool(strict_mode=False)
    def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
        """Current weather in a city."""
        called.update(city=city, unit=unit)
        return RESULT

    last = Runner.run_sync(agent(tools=[get_weather]), QUESTION).final_output
    return called, last


def structured():
    return Runner.run_sync(agent(output_type=Weather), QUESTION).final_output


async def leave():
    running = Runner.run_streamed(agent(ENDLESS), HELLO)
    async for _ in pieces(running):
        running.cancel()


fill(
    chat=lambda: ask(KEY, MODEL, HELLO),
    stream=lambda: asyncio.run(streamed()),
    tools=tools,
    structured=structured,
    cancel=lambda: asyncio.run(leave()),
    ask=ask,
)
