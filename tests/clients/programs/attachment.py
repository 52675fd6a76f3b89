import os
import sys
from pathlib import Path

url, sound = sys.argv[1:]
folder = Path(os.environ["LLM_USER_PATH"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: local\n  model_name: chat\n  api_base: {url}\n  api_key_name: ctxgate\n  audio: true\n"
)

import llm  # noqa: E402  # it reads the file above

model = llm.get_model("local")
model.key = "unused"
answer = model.prompt("Heard:", attachments=[llm.Attachment(path=sound)], stream=True)
print("".join(answer))
