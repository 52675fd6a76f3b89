"""MCP servers: real ones, and one that does what none should."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.config import Config, Model
from gateway.engines.process import GUARD
from gateway.features.agents.settings import MCP, MCPServer, Rooms, RoomTools
from gateway.features.agents.tools import Catalogue, Toolbox, ToolContext, ToolError, ToolPolicy
from gateway.features.agents.tools.mcp import server as server_module
from gateway.features.agents.tools.mcp.server import MCPConnections
from gateway.features.agents.tools.mcp.servers import Servers
from gateway.observe.shares import tenant
from tests.patience import PATIENCE
from tests.support.mcp_servers import MISBEHAVING, TIME
from tests.support.state import config

ALL = ToolPolicy("full")

Make = Callable[..., MCPConnections]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes a server called `it`; by default the misbehaving one. Keys are those of config.yaml."""
    made: list[MCPConnections] = []

    def make(
        fault: str = "", *, maximum: int = 20_000, hide: Callable[[str], str] = str, **keys: Any
    ) -> MCPConnections:
        if "url" not in keys:
            keys.setdefault("command", (sys.executable, str(MISBEHAVING), *filter(None, [fault])))
        made.append(MCPConnections("it", MCPServer(**keys), tmp_path / "it", maximum, hide))
        return made[-1]

    yield make
    for server in made:
        await server.aclose()
    assert not processes()


def processes() -> list[psutil.Process]:
    """The servers' processes, without their guards'."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            line = " ".join(child.cmdline())
            if MISBEHAVING.name in line and GUARD.name not in line:
                found.append(child)
    return found


async def toolbox(server: MCPConnections, policy: ToolPolicy = ALL) -> Toolbox:
    return await Catalogue([], lambda: [server]).toolbox(policy, ToolContext())


async def code(box: Toolbox, tool: str, **arguments: Any) -> str | None:
    found: str | None = (await box.run(tool, arguments)).get("error", {}).get("code")
    return found


async def test_a_real_server(make: Make) -> None:
    """From PyPI: mcp-server-time."""
    box = await toolbox(make(command=TIME))
    assert [tool.name for tool in box.tools.values()] == ["it.get_current_time", "it.convert_time"]
    answer = await box.run("it_get_current_time", {"timezone": "Asia/Tokyo"})
    assert json.loads(answer["text"])["datetime"].endswith("+09:00")
    assert await code(box, "it_get_current_time", timezone="Mars/Olympus") == "mcp_tool_failed"
    assert await code(box, "it_get_current_time") == "invalid_arguments"


@asynccontextmanager
async def adder(port: int = 0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """The SDK's own server, over HTTP: its port, and the values of X-Key that it got."""
    from mcp.server.mcpserver import MCPServer as SDKServer
    from starlette.types import ASGIApp, Receive, Scope, Send

    sdk = SDKServer("adder")

    @sdk.tool()
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    app: ASGIApp = sdk.streamable_http_app()
    keys: list[bytes] = []

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            keys.append(dict(scope["headers"]).get(b"x-key", b""))
        await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", port)) as listening:
        config = uvicorn.Config(seen, log_config=None, ws="none", timeout_graceful_shutdown=1)
        web = uvicorn.Server(config)
        serving = asyncio.create_task(web.serve([listening]))
        try:
            yield listening.getsockname()[1], keys
        finally:
            web.should_exit = True
            await serving


async def test_a_real_server_over_http(make: Make) -> None:
    async with adder() as (port, keys):
        server = make(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Key": SecretStr("secret")})
        box = await toolbox(server)
        assert list(box.tools) == ["it_add"]
        assert (await box.run("it_add", {"a": 2, "b": 3}))["text"] == "5"
        assert await code(box, "it_add", a="two", b=3) == "invalid_arguments"
    assert set(keys) == {b"secret"}
    async with adder(port):  # another process, which knows nothing of the session
        codes = [await code(box, "it_add", a=2, b=3) for _ in range(3)]
    assert codes[-1] is None
    assert set(codes) <= {None, "mcp_interrupted"}
    await server.aclose()
    assert (await toolbox(server)).tools  # known still
    assert await code(box, "it_add", a=1, b=1) == "mcp_unavailable"


async def test_a_stop_doesn_t_wait_for_a_start(make: Make) -> None:
    server = make("silent", start_seconds=3600.0)
    starting = asyncio.create_task(server.tools())
    while not processes():  # noqa: ASYNC110 - the server is another process
        await asyncio.sleep(0.01)
    await server.aclose()
    with pytest.raises(ToolError, match="it was stopped"):
        await starting


async def test_what_the_tools_become(make: Make) -> None:
    box = await toolbox(make(allow=("echo", "f*")))
    told = {tool.name: (tool.access, tool.effect, tool.idempotent) for tool in box.tools.values()}
    assert told == {"it.echo": ("read", "read", True), "it.fails": ("edit", "external", False)}
    assert list((await toolbox(make(), ToolPolicy("read"))).tools) == ["it_echo", "it_looks"]
    assert len((await toolbox(make(access="full"), ToolPolicy("edit"))).tools) == 0
    assert (await box.run("it.echo", {"text": "hello"})) == {"text": "hello", "truncated": False}


async def test_a_server_starts_only_for_a_policy_that_reaches_it(make: Make) -> None:
    server = make()
    await toolbox(server, ToolPolicy("full", allow=("other.*",)))
    await toolbox(server, ToolPolicy())
    assert not processes()
    await toolbox(server, ToolPolicy("full", allow=("it.echo",)))
    assert len(processes()) == 1


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("dies", "it ended: exit status 3"),
        ("line", "it wrote a line of over 4194304 bytes"),
        ("lines", "it wrote over 20000 lines that nobody asked for"),
    ],
)
async def test_a_server_that_can_t_be_started(
    fault: str, told: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ToolError, match=told) as raised:
        await make(fault).tools()
    assert raised.value.code == "mcp_unavailable"
    assert any(told in line and "the last words of a server" in line for line in caplog.messages)
    assert not processes()


async def test_servers_that_never_get_ready(make: Make) -> None:
    servers = [make(fault, start_seconds=3.0) for fault in ("silent", "nonsense")]
    errors = await asyncio.gather(*(server.tools() for server in servers), return_exceptions=True)
    assert [str(error) for error in errors] == [
        "the MCP server it: it wasn't ready within 3 s and wrote 1 lines that are no MCP messages",
        "the MCP server it: it wasn't ready within 3 s and wrote 11 lines that are no MCP messages",
    ]
    assert not processes()


async def test_no_such_command(make: Make) -> None:
    with pytest.raises(ToolError, match="/nowhere/at-all: No such file or directory"):
        await make(command=("/nowhere/at-all",)).tools()


async def test_one_that_was_closed_starts_no_more(make: Make) -> None:
    """A turn that began before a reload still has the server as it was configured then."""
    server = make()
    box = await toolbox(server)
    await server.aclose()
    error = (await box.run("it.echo", {"text": "hello"}))["error"]
    assert error["code"] == "mcp_unavailable"
    assert "the MCP server it was stopped" in error["message"]
    assert not processes()


async def test_no_secret_is_in_what_a_failed_start_says(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.features.agents.tools.mcp.server.time.monotonic", lambda: 1000.0)
    server = make(command=("/nowhere/s3cret",), hide=lambda text: text.replace("s3cret", "[hidden]"))
    for started in (True, True, False):
        with pytest.raises(ToolError) as raised:
            await server.tools()
        assert ("it may start again" not in str(raised.value)) is started
        assert "/nowhere/[hidden]" in str(raised.value)
        assert "s3cret" not in str(raised.value) + caplog.text


async def test_starts_back_off(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("gateway.features.agents.tools.mcp.server.time.monotonic", lambda: now)
    server = make("dies")
    for wait in (0, 1, 2, 4):
        with pytest.raises(ToolError, match=r"the MCP server it: it ended: exit status 3$"):
            await server.tools()
        again = now + wait
        for left in (wait, 0.25) if wait else ():
            now = again - left
            with pytest.raises(ToolError, match=rf"it ended: exit status 3; it may start again in {left:.0f} s"):
                await server.tools()
        now = again


@pytest.mark.parametrize(
    ("tool", "expected", "told"),
    [
        ("fails", "mcp_tool_failed", "out of order"),
        ("wrong", "mcp_invalid_answer", "an answer that MCP doesn't allow"),
        ("values", "mcp_interrupted", "a message of over 20000 values"),
        ("dies", "mcp_interrupted", "it ended: exit status 3; it may have taken effect"),
        ("line", "mcp_interrupted", "a line of over 4194304 bytes"),
        ("lines", "mcp_interrupted", "over 20000 lines that nobody asked for"),
        ("pings", "mcp_interrupted", "over 20000 lines that nobody asked for"),
        ("silent", "mcp_timeout", "no answer within 1.5 s; it may still take effect"),
        ("nonsense", "mcp_timeout", "no answer within 1.5 s"),
    ],
)
async def test_a_call_that_goes_wrong(
    tool: str, expected: str, told: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, others are served meanwhile, and the next call starts the server again if need be."""
    monkeypatch.setattr(server_module, "PROBE_SECONDS", 0.2)
    seconds = {"call_seconds": 1.5} if expected == "mcp_timeout" else {}
    box = await toolbox(make(**seconds))
    before = processes()
    call = asyncio.create_task(box.run(f"it.{tool}", {}))
    slowest = 0.0
    while not call.done():
        asked = time.monotonic()
        await asyncio.sleep(0.001)
        slowest = max(slowest, time.monotonic() - asked)
    error = (await call)["error"]
    assert error["code"] == expected
    assert told in error["message"]
    assert slowest < PATIENCE / 10
    monkeypatch.setattr(server_module, "PROBE_SECONDS", 5.0)
    again = await box.run("it.echo", {"text": "again"})
    assert again.get("text") == "again"
    restarted = expected in ("mcp_interrupted", "mcp_timeout")
    assert (processes() != before) is restarted


async def test_a_slow_call_leaves_the_others_alone(make: Make) -> None:
    """A server that answers its probe lives on."""
    server = make(call_seconds=1.5)
    box = await toolbox(server)
    before = processes()
    assert await code(box, "it.slow", text="2") == "mcp_timeout"
    assert (await box.run("it.echo", {"text": "here"}))["text"] == "here"
    assert processes() == before


async def test_results_are_bounded(make: Make) -> None:
    box = await toolbox(make(maximum=1000))
    assert await box.run("it.long", {}) == {"text": "x" * 1000, "truncated": True}


async def test_a_reload_changes_results(tmp_path: Path) -> None:
    """Their length, and what is hidden in them; the process stays."""

    @dataclass
    class Present:
        config: Config

    @dataclass
    class Shared:
        gateway: Present

    command = (sys.executable, str(MISBEHAVING))
    sections: dict[str, Any] = {"mcp": MCP(servers={"it": MCPServer(command=command)})}
    present = Present(config(tmp_path, sections=sections))
    servers = Servers(Shared(present))
    try:
        text = "my own secret " * 100
        assert (await servers.present()[0].call("echo", {"text": text}))["text"] == text
        (before,) = processes()
        more = {**sections, "rooms": Rooms(tools=RoomTools(max_result_chars=1000))}
        model = Model(name="m", runtime="openai", base_url="http://localhost", api_key=SecretStr("own secret"))
        present.config = replace(present.config, sections=more, models={"echo": model})
        found = await servers.present()[0].call("echo", {"text": text})
        assert (len(found["text"]), found["truncated"], "own secret" in found["text"]) == (1000, True, False)
        assert processes() == [before]
    finally:
        await servers.aclose()


async def test_no_secret_of_the_gateway_reaches_a_server(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hidden")
    monkeypatch.setenv("PASSED", "passed")
    monkeypatch.setenv("PYTHONPATH", "hidden")
    server = make(
        env={"OWN": SecretStr("own secret")},
        pass_env=("PASSED",),
        hide=lambda text: text.replace("own secret", "[secret]"),
    )
    found = json.loads((await (await toolbox(server)).run("it.environment", {}))["text"])
    assert (found["PASSED"], found["OWN"], found["PATH"]) == ("passed", "[secret]", os.environ["PATH"])
    assert "hidden" not in str(found)


async def test_tools_that_change(make: Make) -> None:
    server = make()
    box = await toolbox(server)
    assert "it_new" not in box.tools
    await box.run("it.grows", {})
    assert "it_new" in (await toolbox(server)).tools


@pytest.mark.parametrize("instead", ["locked", "wrong"])
async def test_tools_that_change_and_can_t_be_listed(
    make: Make, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The earlier ones stay; each further toolbox asks again."""
    server = make()
    await (await toolbox(server)).run("it.grows", {"text": instead})
    box = await toolbox(server)
    assert ("it_new" in box.tools, box.missing) == (False, {})
    assert "the earlier ones stay" in caplog.text
    assert (await box.run("it.echo", {"text": "hello"}))["text"] == "hello"
    assert "it_new" in (await toolbox(server)).tools


async def test_an_idle_server_ends_and_starts_again(make: Make) -> None:
    box = await toolbox(make(idle_seconds=1.0))
    (process,) = processes()
    await asyncio.to_thread(process.wait, PATIENCE)
    assert (await box.run("it.echo", {"text": "back"}))["text"] == "back"


async def test_calls_at_a_time_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WAITING", 1)
    box = await toolbox(make(at_a_time=1))
    calls = [asyncio.create_task(code(box, "it.slow", text="0.3")) for _ in range(3)]
    assert sorted(map(str, await asyncio.gather(*calls))) == ["None", "None", "mcp_busy"]


async def test_calls_of_one_tenant_leave_room_for_others(make: Make) -> None:
    box = await toolbox(make(at_a_time=2))

    async def called_by(who: str, tool: str, text: str) -> str | None:
        tenant.set(who)
        return await code(box, tool, text=text)

    greedy = [asyncio.create_task(called_by("greedy", "it.slow", "0.2")) for _ in range(8)]
    assert await asyncio.create_task(called_by("other", "it.echo", "x")) is None
    assert sum(each.done() for each in greedy) < 3
    assert await asyncio.gather(*greedy) == [None] * 8


async def test_a_cancelled_call_leaves_the_server_alone(make: Make) -> None:
    box = await toolbox(make())
    call = asyncio.create_task(box.run("it.slow", {"text": "2"}))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await box.run("it.echo", {"text": "here"}))["text"] == "here"


async def test_without_the_sdk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ToolError, match=r"the package mcp is missing: pip install 'ctxgate\[mcp\]'"):
        await make().tools()


def test_nothing_of_the_sdk_loads_with_the_catalogue() -> None:
    import subprocess

    script = (
        "import sys, gateway.features.agents.tools.mcp.servers, gateway.features.rooms.service\n"
        "print('mcp' in sys.modules, 'httpx2' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told == "False False\n"
