"""`/v1/audio`, `/v1/images`, llama.cpp's own endpoints, and `/upstream`."""

from __future__ import annotations

from pathlib import Path

from gateway.feature import Feature, Routes

SOUND_SERVER = Path(__file__).with_name("sound_server.py")
"""An engine that hears or speaks: a program, which runs in a process of its own."""

SOUND = Routes({
    "[/v1]/audio/speech": {"POST": "gateway.features.media.endpoints:speak"},
    "[/v1]/audio/voices": {"GET": "gateway.features.media.endpoints:voices"},
}, api="audio")  # fmt: skip

HEARD = Routes({
    "[/v1]/audio/transcriptions": {"POST": "gateway.features.media.endpoints:transcribe"},
    "[/v1]/audio/translations": {"POST": "gateway.features.media.endpoints:translate"},
}, api="audio", uploads=True)  # fmt: skip

DRAWN = Routes({"[/v1]/images/generations": {"POST": "gateway.features.media.endpoints:draw"}}, api="images")

CHANGED = Routes({
    "[/v1]/images/edits": {"POST": "gateway.features.media.endpoints:edit"},
    "[/v1]/images/variations": {"POST": "gateway.features.media.endpoints:vary"},
}, api="images", uploads=True)  # fmt: skip

INFILL = Routes({"[/v1]/infill": {"POST": "gateway.features.media.endpoints:infill"}}, api="infill")

TOKENS = Routes({
    "[/v1]/tokenize": {"POST": "gateway.features.media.endpoints:tokenize"},
    "[/v1]/detokenize": {"POST": "gateway.features.media.endpoints:detokenize"},
    "[/v1]/apply-template": {"POST": "gateway.features.media.endpoints:apply_template"},
})  # fmt: skip

UPSTREAM = Routes(
    {
        "/upstream/{name}/{path:path}": dict.fromkeys(
            ("GET", "POST", "PUT", "PATCH", "DELETE"), "gateway.features.media.endpoints:upstream"
        )
    },
    uploads=True,
)

FEATURE = Feature(
    name="media",
    sections={"media": "gateway.features.media.settings:Media"},
    routes=(SOUND, HEARD, DRAWN, CHANGED, INFILL, TOKENS, UPSTREAM),
    openapi="gateway.features.media.openapi",
    offers={
        "spoken_chats": "gateway.features.media.spoken:SpokenChats",
        "describer": "gateway.features.media.describer:Describer",
        "hear": "gateway.features.media.transcriber:heard",
        "sound_server": "gateway.features.media.feature:SOUND_SERVER",
    },
)
