import asyncio
from typing import Literal

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from weather import HELLO, MODEL, QUESTION, RESULT, URL, tell

set_default_openai_client(AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0))
set_tracing_disabled(True)
called = {}


@function_tool(strict_mode=False)
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Current weather in a city."""
    called.update(city=city, unit=unit)
    return RESULT


async def main():
    agent = Agent(name="tiny", model=MODEL)
    plain = (await Runner.run(agent, HELLO)).final_output
    running = Runner.run_streamed(agent, HELLO)
    streamed = ""
    async for event in running.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            streamed += event.data.delta
    weather = Agent(name="tiny", model=MODEL, tools=[get_weather])
    result = (await Runner.run(weather, QUESTION)).final_output
    tell(plain, streamed, called, result)


asyncio.run(main())
