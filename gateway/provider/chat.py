"""What the chat providers share: one call of a model over HTTP, whole or streamed."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack, overload

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse
from gateway.provider.contract import AsJSON, AsModel, Config, Messages, ModelT, Options, Tools, Unstructured
from gateway.provider.mapping.call import Call
from gateway.provider.request import SAMPLING, Capabilities
from gateway.provider.response import Response
from gateway.provider.stream import Stream, read_events

if TYPE_CHECKING:
    import httpx

    from gateway.provider.observe import Attempt, Observer, RetryReason
    from gateway.provider.retry import Retry


class ChatProvider(ABC):
    """One model behind one server. It remembers one thing: whether the server constrains output to a schema by itself.

    base_url: `http(s)://host:port`, with or without the API's version as its path; another path stays as it is.
    api_key: sent as a header; appears in no message and no repr.
    http_client: an httpx.AsyncClient with its own limits, timeouts and proxies; the caller closes it.
        Without one the provider has its own, which reads no proxy settings from the environment, and
        `aclose()` or `async with` closes it.
    observer: watches every attempt.

    Raises ValueError for a base_url or api_key that can't be used.
    """

    system: ClassVar[str]
    """Whose wire format it speaks; observers get it."""
    version: ClassVar[str]
    """The path of a base_url that has none."""
    key_header: ClassVar[str] = "Authorization"
    key_prefix: ClassVar[str] = ""
    headers: ClassVar[Mapping[str, str]] = {}
    calls: ClassVar[type[Call]]

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        capabilities: Capabilities | None = None,
        http_client: httpx.AsyncClient | None = None,
        observer: Observer | None = None,
    ) -> None:
        from gateway.provider.server import Server  # with httpx, which takes half of the import's time

        self._server = Server(
            base_url,
            self.version,
            api_key,
            http_client,
            key_header=self.key_header,
            key_prefix=self.key_prefix,
            headers=self.headers,
            failure=self.calls.failure,
        )
        self.model = model
        self.capabilities = capabilities or Capabilities()
        self._native = self.capabilities.native_response_format is not False
        self._observer = observer

    @property
    def base_url(self) -> str:
        return self._server.base_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r}, {self.model!r})"

    @property
    def structured_output(self) -> Literal["native", "prompt"]:
        """How the next call with a response_schema asks for it; Capabilities can fix it."""
        return "native" if self._native else "prompt"

    @abstractmethod
    async def ready(self) -> None:
        """See `Provider.ready`."""

    async def aclose(self) -> None:
        await self._server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[Unstructured],
    ) -> Response[None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[AsModel[ModelT]],
    ) -> Response[ModelT | None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[AsJSON],
    ) -> Response[dict[str, Any] | None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[True],
        **options: Unpack[Unstructured],
    ) -> Stream[None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[True],
        **options: Unpack[AsModel[ModelT]],
    ) -> Stream[ModelT | None]: ...

    @overload
    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: Literal[True],
        **options: Unpack[AsJSON],
    ) -> Stream[dict[str, Any] | None]: ...

    async def complete(
        self,
        messages: Messages,
        tools: Tools = None,
        config: Config = None,
        *,
        stream: bool = False,
        **options: Unpack[Options],
    ) -> Response[Any] | Stream[Any]:
        """Calls the model once: see `Provider.complete`.

        stream: return a Stream as soon as the server accepts the call, before it answers.

        With a response_schema the request has the server's own field for it. For a server that lacks it, a directive
        in the system message takes its place: Capabilities says so, or the server's refusal, which costs a second
        request.
        """
        checked: dict[str, Any] = {**options}
        retry: Retry | None = checked.pop("retry", None)
        check = partial(self.calls.check, self.model, self.capabilities, tools=tools, stream=stream, **checked)
        if retry is None:
            return await self._attempt(check, messages, config, stream)
        if stream and retry.reask is not None:
            raise ProviderInvalidRequest("retry.reask: a streamed answer can't be taken back", param="retry.reask")
        conversation = messages

        async def attempt(number: int, reason: RetryReason | None, failure: object) -> Response[Any] | Stream[Any]:
            nonlocal conversation
            changed = config
            if number:
                conversation, changed = retry.again(number, conversation, config, failure)
            return await self._attempt(check, conversation, changed, stream, number, reason)

        return await retry.run(attempt)

    async def _attempt(
        self,
        check: Callable[..., Call],
        messages: Messages,
        config: Config,
        stream: bool,
        number: int = 0,
        reason: RetryReason | None = None,
    ) -> Response[Any] | Stream[Any]:
        observation = None
        if self._observer is not None:
            observation = self._observer.attempt(self._about(config, stream, number, reason))
        try:
            # In a thread, as `call.response`: checking schemas may take long.
            call = await asyncio.to_thread(check, messages, config=config)
            answer = await self._open(call)
            if stream:
                if "application/json" in answer.headers.get("content-type", ""):
                    await answer.aclose()
                    raise ProviderInvalidResponse(f"{self.base_url} answered a streamed call with a whole body")
                events = read_events(self._server.bytes(answer), call)
                return Stream(events, answer.aclose, observation)
            response = await asyncio.to_thread(call.response, await self._server.json(answer))
        except BaseException as error:
            if observation is not None:
                observation.end(error)
            raise
        if observation is not None:
            observation.end(response)
        return response

    def _about(self, config: Config, stream: bool, number: int, reason: RetryReason | None) -> Attempt:
        from gateway.provider.observe import Attempt

        values = {name: getattr(config, name, None) for name in SAMPLING}
        parameters = {name: value for name, value in values.items() if value is not None}
        return Attempt("complete", self.system, self.model, number, reason, stream, parameters)

    async def _open(self, call: Call) -> httpx.Response:
        """Sends the call, once more if the server turns out not to constrain output by itself."""
        while True:
            native = self._native
            answer = await self._server.open("POST", call.path(), call.body(native))
            if answer.status_code == 200:
                return answer
            failure, cause = await self._server.failure(answer)
            learns = native and call.output is not None and self.capabilities.native_response_format is None
            if not (learns and failure.refuses_response_format()):
                raise failure.error(call.images) from cause
            self._native = False
