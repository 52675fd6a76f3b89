"""The slots of a llama-server: saves them to files and restores them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from gateway.backends.openai import OpenAIBackend
from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.prompts.protocols import Build, PromptReading
from gateway.wire.chat import encode


class LlamaCppSlots:
    """See `gateway.prompts.protocols.SlotServer`. props: asks for the server's /props."""

    def __init__(self, backend: OpenAIBackend, props: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._backend = backend
        self._props = props

    async def build(self) -> Build | None:
        props = await self._props()
        slots = props.get("total_slots")
        if not isinstance(slots, int) or slots < 1:
            return None
        settings = props.get("default_generation_settings")
        window = settings.get("n_ctx") if isinstance(settings, dict) else None
        return Build(slots, [props.get("build_info"), window, props.get("model_ftype"), props.get("chat_template")])

    async def save(self, slot: int, file: str) -> tuple[int, int]:
        done = await self._act(slot, "save", file)
        if not done.n_saved or done.n_written is None:
            raise ProviderInvalidResponse("the engine saved nothing")
        return done.n_saved, done.n_written

    async def restore(self, slot: int, file: str) -> int:
        done = await self._act(slot, "restore", file)
        return done.n_restored or 0

    async def held(self) -> list[tuple[int, int]] | None:
        status, body = await self._backend.get("/slots")
        if status != 200:
            return None
        found = sorted(_decode(body, list[_Held]), key=lambda slot: slot.id_task or 0, reverse=True)
        return [(slot.id, slot.n_prompt_tokens or 0) for slot in found if not slot.is_processing]

    async def recall(self, prompt: str) -> None:
        await self._have_read(prompt, cache_prompt=Raw(b"true"))

    async def read(self, slot: int, prompt: str, *, reuse: bool) -> PromptReading:
        cached = Raw(b"true" if reuse else b"false")
        done = _decode(await self._have_read(prompt, id_slot=Raw(b"%d" % slot), cache_prompt=cached), _Read).timings
        return PromptReading(done.cache_n + done.prompt_n, done.prompt_n, done.prompt_ms / 1000)

    async def _have_read(self, prompt: str, **more: Raw) -> bytes:
        """The engine's answer once it has read a prompt, of which it continues nothing."""
        asked = {"prompt": Raw(encode(prompt)), "n_predict": Raw(b"0"), **more}
        response = await self._backend.accepted(self._backend.post_head("/completion"), asked)
        try:
            return await response.read()
        finally:
            response.close()

    async def _act(self, slot: int, action: str, file: str) -> _Done:
        head = self._backend.post_head(f"/slots/{slot}?action={action}")
        response = await self._backend.upstream.request(head, encode({"filename": file}))
        try:
            body = await response.read()
        finally:
            response.close()
        if response.status != 200:
            raise ProviderUnavailable(f"the engine can't {action} slot {slot}: {response.status} {body[:200]!r}")
        return _decode(body, _Done)


class _Done(msgspec.Struct):
    n_saved: int | None = None
    n_written: int | None = None
    n_restored: int | None = None


class _Timings(msgspec.Struct):
    prompt_n: int = 0
    prompt_ms: float = 0.0
    cache_n: int = 0


class _Read(msgspec.Struct):
    timings: _Timings


class _Held(msgspec.Struct):
    id: int
    id_task: int | None = None
    is_processing: bool = False
    n_prompt_tokens: int | None = None


Value = TypeVar("Value")


def _decode(body: bytes, kind: type[Value]) -> Value:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderInvalidResponse(f"the engine's answer about its slots is malformed: {error}") from error
