"""The part of `/openapi.json` about sound, pictures, llama.cpp's own endpoints and `/upstream`."""

from __future__ import annotations

from gateway.api.openapi_paths import COUNT, TEXT, Json, described, list_of, object_of, operation, parameter
from gateway.features.media.requests import CreateImage, CreateSpeech, Named

_FILE: Json = {"type": "string", "format": "binary"}
ANSWERS: dict[str, Json] = {
    "Transcription": object_of("", text=TEXT),
    "Voices": object_of("", voices=list_of({})),
    "Images": object_of("", created=COUNT, data=list_of({"type": "object"})),
    "Infill": object_of("", content=TEXT),
    "AnyAnswer": {},
}


def _form(id: str, summary: str, answer: str, **fields: Json) -> Json:
    schema = object_of("file" if "file" in fields else "image", model=TEXT, response_format=TEXT, **fields)
    return {
        **operation(id, summary, answer, stream="text/event-stream"),
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}},
    }


def _upstream(method: str) -> Json:
    path, summary = (parameter("name"), parameter("path")), "Any path of a model's own server"
    return operation(f"upstream{method}", summary, "AnyAnswer", parameters=path, tag="ctxgate")


def _other(id: str, summary: str, answer: str = "AnyAnswer") -> Json:
    return operation(id, summary, answer, request="Named", stream="text/event-stream", tag="llama.cpp")


_SOUND: dict[str, Json] = {"file": _FILE, "language": TEXT, "prompt": TEXT, "temperature": TEXT, "stream": TEXT}
_PICTURE: dict[str, Json] = {"image": _FILE, "prompt": TEXT, "n": TEXT, "size": TEXT}

ABOUT = {"llama.cpp": "Endpoints of llama.cpp's server, by the model of the request."}

PATHS: dict[str, Json] = {
    "/v1/audio/transcriptions": {"post": _form("transcribe", "Speech to text", "Transcription", **_SOUND)},
    "/v1/audio/translations": {"post": _form("translate", "Speech to English text", "Transcription", **_SOUND)},
    "/v1/audio/speech": {
        "post": operation("speak", "Text to speech", "AnyAnswer", request="CreateSpeech", stream="audio/*")
    },
    "/v1/audio/voices": {
        "get": operation("voices", "The voices of a model", "Voices", parameters=(parameter("model", "query"),))
    },
    "/v1/images/generations": {"post": operation("draw", "Text to pictures", "Images", request="CreateImage")},
    "/v1/images/edits": {"post": _form("editImage", "Change pictures", "Images", **_PICTURE)},
    "/v1/images/variations": {"post": _form("varyImage", "Variations of a picture", "Images", **_PICTURE)},
    "/v1/infill": {"post": _other("infill", "Code between a prefix and a suffix", "Infill")},
    "/v1/tokenize": {"post": _other("tokenize", "Text to tokens")},
    "/v1/detokenize": {"post": _other("detokenize", "Tokens to text")},
    "/v1/apply-template": {"post": _other("applyTemplate", "The prompt of a conversation")},
    "/upstream/{name}/{path}": {
        method.lower(): _upstream(method) for method in ("Get", "Post", "Put", "Patch", "Delete")
    },
}


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS | described({"CreateSpeech": CreateSpeech, "CreateImage": CreateImage, "Named": Named})
