import asyncio
import json

import dspy
from cells import ENDLESS, HELLO, KEY, MODEL, QUESTION, RESULT, TOOL, URL, fill, said
from shape import Weather


def lm(model=MODEL, key=KEY):
    return dspy.LM(f"openai/{model}", api_base=f"{URL}/v1", api_key=key, cache=False)


def ask(key, model, text):
    return lm(model, key)(text)[0]


def tools():
    (first,) = lm()(messages=[said(QUESTION)], tools=[TOOL])
    call = first["tool_calls"][0]
    function = call["function"]
    calls = [{"id": "c", "type": "function", "function": function}]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    past = [said(QUESTION), asked, {"role": "tool", "tool_call_id": "c", "content": RESULT}]
    return json.loads(function["arguments"]), lm()(messages=past, tools=[TOOL])[0]


def structured():
    return Weather.model_validate_json(lm()(QUESTION, response_format=Weather)[0])


class Say(dspy.Module):
    def forward(self, text):
        return dspy.Prediction(text=dspy.settings.lm(text)[0])


async def pieces(model):
    with dspy.context(lm=lm(model)):
        async for piece in dspy.streamify(Say())(text=HELLO):
            yield piece


async def streamed():
    return "".join([piece.choices[0].delta.content or "" async for piece in pieces(MODEL) if hasattr(piece, "choices")])


async def leave():
    stream = pieces(ENDLESS)
    async for _ in stream:
        break
    await stream.aclose()


fill(
    chat=lambda: ask(KEY, MODEL, HELLO),
    stream=lambda: asyncio.run(streamed()),
    tools=tools,
    structured=structured,
    cancel=lambda: asyncio.run(leave()),
    ask=ask,
)
