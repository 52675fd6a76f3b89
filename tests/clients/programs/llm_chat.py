import os
from pathlib import Path

from weather import HELLO, MODEL, QUESTION, RESULT, URL, tell

folder = Path(os.environ["LLM_USER_PATH"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: {MODEL}\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  supports_tools: true\n"
)

import llm  # noqa: E402  # it reads the file above

called = {}


def get_weather(city: str, unit: str = "celsius") -> str:
    """Current weather in a city."""
    called.update(city=city, unit=unit)
    return RESULT


model = llm.get_model(MODEL)
model.key = "unused"
plain = model.prompt(HELLO, stream=False).text()
streamed = "".join(model.prompt(HELLO, stream=True))
result = model.chain(QUESTION, tools=[get_weather]).text()
tell(plain, streamed, called, result)
