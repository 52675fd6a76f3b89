"""What embedding and reranking share: the server, the checks of arguments, ids and counts of answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from gateway.errors import ProviderInvalidRequest
from gateway.provider.mapping.call import count
from gateway.provider.observe import Attempt, Observer, Operation
from gateway.schema.jsontext import dump_json

if TYPE_CHECKING:
    import httpx


class Retriever:
    """One model behind one server.

    base_url: `http(s)://host:port`; the paths of the API come behind it.
    api_key, http_client, observer: see `gateway.provider.chat.ChatProvider`.
    chunk_size: the most texts or documents in a request; None: as the API allows.

    Raises ValueError for a base_url, api_key or chunk_size that can't be used.
    """

    system: ClassVar[str]
    """Whose wire format it speaks; observers get it."""
    version: ClassVar[str] = ""
    """The path of a base_url that has none."""
    chunk_size: int | None = None
    """The most that the server takes at a time; None if it takes any number."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        http_client: httpx.AsyncClient | None = None,
        observer: Observer | None = None,
        *,
        chunk_size: int | None = None,
    ) -> None:
        from gateway.provider.server import Server

        if chunk_size is not None:
            if chunk_size < 1:
                raise ValueError("chunk_size must be at least 1")
            self.chunk_size = chunk_size
        self._server = Server(base_url, self.version, api_key, http_client)
        self.model = model
        self._observer = observer

    @property
    def base_url(self) -> str:
        return self._server.base_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r}, {self.model!r})"

    async def aclose(self) -> None:
        await self._server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _post(self, path: str, fields: Mapping[str, Any]) -> Any:
        try:
            body = dump_json(fields, sort_keys=True).encode()
        except ValueError as error:
            raise ProviderInvalidRequest(f"the call can't be written as JSON: {error}") from error
        return await self._server.post(path, body)

    @contextmanager
    def _watched(
        self, operation: Operation, parameters: Mapping[str, Any], counts: Mapping[str, int]
    ) -> Iterator[list[Any]]:
        """Tells the observer of an attempt. The block puts its response into the list."""
        outcome: list[Any] = []
        if self._observer is None:
            yield outcome
            return
        attempt = Attempt(operation, self.system, self.model, parameters=parameters, counts=counts)
        observation = self._observer.attempt(attempt)
        try:
            yield outcome
        except BaseException as error:
            observation.end(error)
            raise
        observation.end(outcome[0])


def size(value: object) -> int:
    """How many there are; 0 of what isn't a list, which the checks will refuse."""
    return len(value) if isinstance(value, Sequence) else 0


def check_texts(value: object, where: str) -> list[str]:
    """Raises ProviderInvalidRequest for anything but a sequence of texts with at least one."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        refuse(where, f"must be a list of texts, not {type(value).__name__}")
    if not value:
        refuse(where, "needs at least one text")
    for index, text in enumerate(value):
        if not isinstance(text, str):
            refuse(f"{where}[{index}]", f"must be a text, not {type(text).__name__}")
    return list(value)


def check_positive(value: object, where: str) -> None:
    if value is not None and (type(value) is not int or value < 1):
        refuse(where, f"must be at least 1, not {value!r}")


def refuse(where: str, reason: str) -> NoReturn:
    raise ProviderInvalidRequest(f"{where}: {reason}", param=where)


def response_id(raw: Any) -> str | None:
    """The id of an answer; None for one that is missing, empty or malformed (§7)."""
    found = raw.get("id") if isinstance(raw, dict) else None
    return found if isinstance(found, str) and found else None


def model_name(raw: Any, bound: str) -> str:
    found = raw.get("model") if isinstance(raw, dict) else None
    return found if isinstance(found, str) and found else bound


def tokens(raw: Any) -> int | None:
    """The input tokens, where the server reports them: OpenAI's, Jina's or Cohere's place. None if malformed (§7)."""
    if not isinstance(raw, dict):
        return None
    usage = raw.get("usage")
    if isinstance(usage, dict):
        return count(usage, "prompt_tokens" if "prompt_tokens" in usage else "total_tokens")
    return count(billed(raw), "input_tokens")


def billed(raw: Any) -> Any:
    """Cohere's counts."""
    meta = raw.get("meta") if isinstance(raw, dict) else None
    return meta.get("billed_units") if isinstance(meta, dict) else None
