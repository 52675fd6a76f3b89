import asyncio

from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, URL, fill
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from shape import Weather


def agent(model=MODEL, key=KEY, **more):
    return Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=key)), **more)


def ask(key, model, text):
    return agent(model, key).run_sync(text).output


async def streamed():
    async with agent().run_stream(HELLO) as result:
        return "".join([piece async for piece in result.stream_text(delta=True)])


def tools():
    called = {}
    weather = agent()

    @weather.tool_plain
    def get_weather(city: str, unit: str = "celsius") -> str:
        """Current weather in a city."""
        called.update(city=city, unit=unit)
        return RESULT

    last = weather.run_sync(QUESTION).output
    return called, last


def structured():
    return agent(output_type=Weather).run_sync(QUESTION).output


async def leave():
    async with agent(ENDLESS).run_stream(HELLO) as result:
        async for _ in result.stream_text(delta=True):
            break


fill(
    chat=lambda: ask(KEY, MODEL, HELLO),
    stream=lambda: asyncio.run(streamed()),
    tools=tools,
    structured=structured,
    cancel=lambda: asyncio.run(leave()),
    ask=ask,
)
