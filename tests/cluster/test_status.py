"""The nodes of a cluster where people look: `ctxgate status`, and the page in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from gateway.features.cluster import tables
from gateway.features.cluster.values import NodeRow
from tests.cli.commands import ctxgate
from tests.cluster.nodes import Gateway, config, until
from tests.page.browser import Page
from tests.page.conftest import one_browser as one_browser  # a fixture
from tests.page.conftest import page as page  # a fixture
from tests.ports import free_port
from tests.store.postgresql import start

GB = 10**9
NODES = (
    NodeRow(
        "a" * 56,
        "forge",
        {"disk": "ssd"},
        32 * GB,
        12 * GB,
        24 * GB,
        6 * GB,
        ("chat-1", "chat-2"),
        "192.0.2.1",
        16.0,
        1.0,
    ),
    NodeRow("b" * 56, "anvil", {}, 8 * GB, 0, 0, 0, (), "192.0.2.2", 4.0),
    NodeRow("c" * 56, "<b>tongs</b>", {}, 8 * GB, 0, 0, 0, (), "192.0.2.3", 4.0, alive=False),
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Of a cluster whose table has three nodes; nobody answers at its Ray's address."""
    with start() as server:
        store = server.database()
        made = Gateway(tmp_path_factory.mktemp("status"), "one", config(f"127.0.0.1:{free_port()}", store))
        try:
            engine = create_engine(store.replace("postgresql://", "postgresql+psycopg://"))
            until(lambda: made.ask("/-/status")["cluster"]["store"], "the tables are there")
            with engine.begin() as connection:
                tables.replace_nodes(connection, NODES)
                tables.replace_engines(connection, [])
            engine.dispose()
            until(lambda: made.ask("/-/status")["cluster"]["nodes"], "it has read them")
            until(lambda: not made.ask("/-/status")["cluster"]["ray"], "it knows that Ray is away")
            yield made
        finally:
            made.close()


def test_ctxgate_status_shows_the_nodes(gateway: Gateway, tmp_path: Path) -> None:
    done = ctxgate("status", "--once", "--url", f"http://127.0.0.1:{gateway.port}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: " ".join(line.split()) for line in done.stdout.splitlines() if line.strip()}
    assert rows["NODE"] == "NODE ADDRESS STATE CPUS MEMORY FREE GPU MEMORY FREE ENGINES LABELS"
    assert rows["forge"] == (
        "forge aaaaaaaa 192.0.2.1 alive 16 20.0 GB of 32.0 GB 18.0 GB of 24.0 GB chat-1, chat-2 disk=ssd"
    )
    assert rows["anvil"] == "anvil bbbbbbbb 192.0.2.2 alive 4 8.0 GB of 8.0 GB - - -"
    assert rows["<b>tongs</b>"] == "<b>tongs</b> cccccccc 192.0.2.3 gone 4 - - - -"
    assert f":{gateway.port}" in rows["gateways:"]
    assert rows["Ray"] == "Ray is down: running engines keep working, no others start"


@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_shows_the_nodes(page: Page, gateway: Gateway, width: int) -> None:
    page.look(width, 900)
    page.open(f"http://127.0.0.1:{gateway.port}/#/models")
    text = page.reads("Machines", "forge", "192.0.2.1", "20.0 GB of 32.0 GB", "18.0 GB of 24.0 GB", "chat-1, chat-2")
    assert "disk=ssd" in text
    assert "<b>tongs</b>" in text
    assert "Ray is down" in text
    assert "PostgreSQL is down" not in text
    states = page.js("[...document.querySelectorAll('[aria-label=Machines] tbody .badge')].map(one => one.innerText)")
    assert states == ["alive", "alive", "gone"]
    assert page.js("document.documentElement.scrollWidth") <= width, "only the table scrolls"


def test_a_gateway_alone_shows_no_machines(page: Page, tmp_path: Path) -> None:
    from tests.cli.commands import config as written
    from tests.cli.commands import serving

    port = free_port()
    written(tmp_path, f"active_model: echo\nmodels: {{echo: {{runtime: echo}}}}\nserver: {{port: {port}}}\n")
    with serving(tmp_path):
        page.open(f"http://127.0.0.1:{port}/#/models")
        assert "Machines" not in page.reads("echo", "Context")
