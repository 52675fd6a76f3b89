"""openai-agents with a session that the gateway keeps."""

import asyncio

from agents import (
    Agent,
    OpenAIConversationsSession,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from weather import HELLO, MODEL, QUESTION, RESULT, URL, tell

client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
set_default_openai_client(client)
set_tracing_disabled(True)
called = {}


@function_tool(strict_mode=False)
def get_weather(city: str, unit: str = "celsius") -> str:
    """Current weather in a city."""
    called.update(city=city, unit=unit)
    return RESULT


async def main():
    agent = Agent(name="tiny", model=MODEL)
    session = OpenAIConversationsSession(openai_client=client)
    plain = (await Runner.run(agent, HELLO, session=session)).final_output
    assert [item["role"] for item in await session.get_items()] == ["user", "assistant"]
    running = Runner.run_streamed(agent, HELLO, session=OpenAIConversationsSession(openai_client=client))
    streamed = ""
    async for event in running.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            streamed += event.data.delta
    weather = Agent(name="tiny", model=MODEL, tools=[get_weather])
    other = OpenAIConversationsSession(openai_client=client)
    result = (await Runner.run(weather, QUESTION, session=other)).final_output
    kinds = [item["type"] for item in await other.get_items()]
    assert kinds == ["message", "function_call", "function_call_output", "message"], kinds
    # A second turn, in which the model is shown the first.
    await Runner.run(weather, HELLO, session=other)
    assert len(await other.get_items()) > 5
    last = await other.pop_item()
    assert last["role"] == "assistant", last
    assert len(await other.get_items(limit=3)) == 3
    await other.clear_session()
    tell(plain, streamed, called, result)


asyncio.run(main())
