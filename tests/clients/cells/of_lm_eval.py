import json
import logging
import os

import requests
from cells import HELLO, KEY, MODEL, URL, fill, said
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion

shown = []
handler = logging.Handler()
handler.emit = lambda record: shown.append(record.getMessage())
logging.getLogger("lm_eval").addHandler(handler)


def ask(key, model, text):
    os.environ["OPENAI_API_KEY"] = key
    chat = LocalChatCompletion(base_url=f"{URL}/v1/chat/completions", pretrained=model)
    question = JsonChatStr(json.dumps([said(text)]))
    asked = Instance("generate_until", {}, (question, {"until": ["\n\n"], "max_gen_toks": 64}), 0)
    try:
        return chat.generate_until([asked], disable_tqdm=True)[0]
    except requests.HTTPError as error:
        # A person reads the message in the log.
        raise type(error)(f"{error}: {shown[-1] if shown else ''}") from None


fill(
    chat=lambda: ask(KEY, MODEL, HELLO),
    stream="it asks for whole answers",
    tools="it sends no tools",
    structured="it sends no schema",
    cancel="it asks for whole answers, one after another",
    ask=ask,
)
