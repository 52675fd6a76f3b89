"""`ctxgate chat`"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from gateway.cli.client import PROBE_SECONDS, base_url, headers, refusal, transport
from gateway.cli.options import FILE, Command, Text, config_option, configuration
from gateway.cli.running import located
from gateway.cli.text import say
from gateway.errors import GatewayError, ProviderInvalidModel, ProviderInvalidRequest, ProviderUnavailable
from gateway.wire import sse
from gateway.wire.text import printable

if TYPE_CHECKING:
    import httpx

    from gateway.config import Config

EXAMPLES = """\
in the chat:
  /new    start over without history
  /quit   leave (as Ctrl-D does; Ctrl-C stops an answer)

examples:
  ctxgate chat
  ctxgate chat "What is a GGUF file?"
  ctxgate chat lfm25-1.2b --system "Answer in one sentence."
  ctxgate chat ctxgate-test-tools --tools tools.json   shows calls and asks for their results
  echo "What is a GGUF file?" | ctxgate chat
"""

START_SECONDS = 30.0
STOP_SECONDS = 15.0
ANSWER_SECONDS = 900.0
"""Bound on silence: an engine may take minutes to load, and as long to read a long prompt."""
MAX_TOOL_ROUNDS = 8


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option("--system", type=Text(), metavar="TEXT", help="A system message.")
@click.option("--tools", type=FILE, metavar="FILE", help="JSON list of tools, as in a request.")
@click.argument(
    "model", type=Text(), required=False, metavar="[MODEL]", help="A model of config.yaml (default: the active one)."
)
@click.argument("question", type=Text(), nargs=-1, metavar="[QUESTION]...", help="Asked once, without a chat.")
def chat(
    config: Path | None, system: str | None, tools: Path | None, model: str | None, question: tuple[str, ...]
) -> int:
    """A small chat to try a model. Uses the running gateway, or starts its own."""
    loaded = configuration(config)
    try:
        name = loaded.resolve(model).name
    except ProviderInvalidModel as error:
        if model is None:
            raise
        if not (question or _is_question(model)):
            raise ProviderInvalidModel(f"{error.message}; to ask that: ctxgate chat default {model}") from None
        name, question = loaded.resolve(None).name, (model, *question)
    offered = _tools(tools) if tools is not None else None
    import httpx

    loaded = replace(loaded, server=located(loaded.server, loaded.source))
    with contextlib.ExitStack() as stack:
        if not _runs(loaded):
            loaded = stack.enter_context(_own_gateway(loaded))
        server = loaded.server
        http = stack.enter_context(
            httpx.Client(
                base_url=base_url(server),
                transport=transport(server),
                headers=headers(server),
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=5),
                trust_env=False,
            )
        )
        talk = Chat(http, name, system, offered, sys.stdin.isatty() and not question)
        return talk.ask(" ".join(question)) if question else talk.loop()


def _is_question(text: str) -> bool:
    return any(char.isspace() for char in text) or text.endswith(("?", "!", "."))


class Chat:
    """One conversation. Without a terminal, reads a question from each line of stdin and prints only answers."""

    def __init__(
        self, http: httpx.Client, model: str, system: str | None, tools: list[Any] | None, terminal: bool
    ) -> None:
        self._http = http
        self._model = model
        self._system = system
        self._tools = tools
        self._terminal = terminal
        self._history: list[dict[str, Any]] = []
        self._failure = 0

    def ask(self, question: str) -> int:
        """Asks one question. Returns the exit code."""
        self._begin()
        self._turn(question)
        return self._failure

    def loop(self) -> int:
        """Returns the exit code: without a terminal, that of the last failure."""
        if self._terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # line editing in input()
            say(f"{self._model}; /new starts over, /quit leaves")
        self._begin()
        while (line := self._read("> ")) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit" | "/exit":
                    break
                case "/new":
                    self._begin()
                case text:
                    self._turn(text)
        return 0 if self._terminal else self._failure

    def _begin(self) -> None:
        self._history = [{"role": "system", "content": self._system}] if self._system else []

    def _read(self, prompt: str) -> str | None:
        if not self._terminal:
            return sys.stdin.readline() or None
        try:
            return input(printable(prompt))  # it names a call, which the model chose
        except (EOFError, KeyboardInterrupt):
            say()
            return None

    def _turn(self, text: str) -> None:
        """Asks until the model answers without tool calls, MAX_TOOL_ROUNDS at most. A failed turn leaves no history."""
        before = len(self._history)
        self._history.append({"role": "user", "content": text})
        try:
            for _ in range(MAX_TOOL_ROUNDS):
                message = self._answer()
                self._history.append(message)
                if not message.get("tool_calls"):
                    return
                for call in message["tool_calls"]:
                    result = self._read(f"  result of {call['function']['name']}> ") or ""
                    self._history.append({"role": "tool", "tool_call_id": call["id"], "content": result.strip()})
            say(f"(stopped after {MAX_TOOL_ROUNDS} rounds of tool calls)")
        except KeyboardInterrupt:
            say("\n(stopped)")
            del self._history[before:]
        except GatewayError as error:
            say(f"\n{error}" if self._terminal else f"ctxgate: {error}", file=sys.stderr)
            self._failure = error.exit_code
            del self._history[before:]

    def _answer(self) -> dict[str, Any]:
        """Prints one answer as it arrives and returns its message. Raises a GatewayError."""
        import httpx

        body: dict[str, Any] = {"model": self._model, "messages": self._history, "stream": True}
        if self._tools is not None:
            body["tools"] = self._tools
        shown = _Answer()
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise refusal(_problem(response.text), response.text[:500])
                for payload in sse.read(response.iter_bytes()):
                    if payload != b"[DONE]":
                        shown.chunk(json.loads(payload))
        except (httpx.HTTPError, ValueError) as error:
            raise ProviderUnavailable(f"the answer was cut off: {error or type(error).__name__}") from error
        finally:
            shown.end()
        return shown.message()


class _Answer:
    """One streamed answer: prints its chunks and assembles the message for the history."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._reasoning = False
        self._line_open = False

    def chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise refusal(chunk["error"], str(chunk["error"]))
        for choice in chunk.get("choices", []):
            delta = choice.get("delta", {})
            if thought := delta.get("reasoning_content"):
                self._set_mode(reasoning=True)
                self._say(thought)
            if text := delta.get("content"):
                self._set_mode(reasoning=False)
                self._say(text)
                self._content.append(text)
            for piece in delta.get("tool_calls") or []:
                self._set_mode(reasoning=False)
                self._piece(piece)

    def end(self) -> None:
        self._set_mode(reasoning=False)
        if self._line_open:
            self._say("\n")

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _set_mode(self, *, reasoning: bool) -> None:
        if reasoning != self._reasoning:
            self._reasoning = reasoning
            if self._line_open:
                self._say("\n")

    def _piece(self, piece: dict[str, Any]) -> None:
        index, function = piece.get("index", 0), piece.get("function", {})
        call = self._calls.get(index)
        if call is None:
            call = {"id": piece.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
            self._calls[index] = call
            self._say("\n→ " if self._line_open else "→ ")
        for key in ("name", "arguments"):
            if text := function.get(key):
                call["function"][key] += text
                self._say(text + (" " if key == "name" else ""))

    def _say(self, text: str) -> None:
        click.secho(printable(text), dim=self._reasoning or None, nl=False)
        self._line_open = not text.endswith("\n")


def _runs(config: Config) -> bool:
    import httpx

    server = config.server
    try:
        with httpx.Client(transport=transport(server), timeout=PROBE_SECONDS, trust_env=False) as http:
            answer = http.get(f"{base_url(server)}/health").json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and answer.get("status") in ("ok", "degraded") and "active_model" in answer


@contextlib.contextmanager
def _own_gateway(config: Config) -> Iterator[Config]:
    """Runs a gateway in this process, on a free port of loopback. Yields the configuration with that address."""
    import uvicorn

    from gateway.app import IDLE_SECONDS, build

    ready = threading.Event()

    class ReadyServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = replace(config.server, uds=None, tls=None, host="127.0.0.1", port=_port(listening))
        config = replace(config, server=here)
        app = build(config)
        server = ReadyServer(
            uvicorn.Config(app, log_level="error", ws="none", loop="asyncio", timeout_keep_alive=IDLE_SECONDS)
        )

        def serve() -> None:
            try:
                server.run(sockets=[listening])
            finally:
                ready.set()

        thread = threading.Thread(target=serve, name="gateway", daemon=True)
        thread.start()
        try:
            if not ready.wait(START_SECONDS) or not server.started:
                raise ProviderUnavailable("the gateway didn't start")
            yield config
        finally:
            server.should_exit = True
            thread.join(STOP_SECONDS)


def _port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def _tools(file: Path) -> list[Any]:
    try:
        tools = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ProviderInvalidRequest(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(tools, list):
        raise ProviderInvalidRequest(f"{file} must contain a JSON list of tools, as in a request")
    return tools


def _problem(body: str) -> object:
    try:
        found: object = json.loads(body)["error"]
        return found
    except (ValueError, KeyError, TypeError):
        return None
