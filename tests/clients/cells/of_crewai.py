from cells import HELLO, KEY, MODEL, QUESTION, RESULT, TOOL, URL, fill
from crewai import LLM
from shape import Weather


def llm(model=MODEL, key=KEY, **more):
    return LLM(model=f"openai/{model}", base_url=f"{URL}/v1", api_key=key, **more)


def ask(key, model, text):
    return llm(model, key).call(text)


def tools():
    called = {}

    def get_weather(**arguments):
        called.update(arguments)
        return RESULT

    last = llm().call(QUESTION, tools=[TOOL], available_functions={"get_weather": get_weather})
    assert last == RESULT
    return called, last, "`LLM.call` returns the tool's result itself; the model sees it in an agent's next turn"


def structured():
    answer = llm().call(QUESTION, response_model=Weather)
    return answer if isinstance(answer, Weather) else Weather.model_validate_json(answer)


fill(
    chat=lambda: ask(KEY, MODEL, HELLO),
    stream=lambda: llm(stream=True).call(HELLO),
    tools=tools,
    structured=structured,
    cancel="`LLM.call` collects the whole stream and can't be cancelled",
    ask=ask,
)
