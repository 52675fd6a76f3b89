"""`/-/jobs`, `/-/hub` and `/-/models`: downloads and measurements that survive their client, and who may begin them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import load
from gateway.features.models.jobs import FILE, RESULTS, prune_results
from gateway.features.models.pull.download import ATTEMPTS
from gateway.server.tls import trusting
from tests.cli import commands
from tests.cli.commands import config, ctxgate
from tests.engines.served import served
from tests.models.pull.sources import Source, serving
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.support.certificates import written
from tests.support.hub import REPO, hub
from tests.support.jobs import until

Json = dict[str, Any]
SOURCE = f"hf:{REPO}:tiny.gguf"
CONFIG: Json = {
    "active_model": "echo",
    "models": {
        "echo": {"runtime": "echo"},
        "mine": {"runtime": "llama.cpp", "path": "mine.gguf", "tool_call_format": "hermes"},
    },
    "server": {"cors_origins": ["*"]},
    "state_dir": "state",
}
HELLO = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def source(test_model: Path) -> Iterator[Source]:
    pytest.importorskip("huggingface_hub", reason="the extra `hub` isn't installed")
    with serving(hub(test_model.read_bytes(), gguf={"architecture": "llama", "context_length": 1024})) as source:
        yield source


@pytest.fixture(scope="module")
def folder(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gateway's: all tests but one share it, in their order."""
    made = tmp_path_factory.mktemp("jobs")
    (made / "mine.gguf").write_bytes(test_model.read_bytes())
    return made


@pytest.fixture(scope="module")
def client(source: Source, folder: Path) -> Iterator[httpx.Client]:
    environ = {"HF_ENDPOINT": source.url, "HF_HOME": str(folder / "hf"), "NO_PROXY": "127.0.0.1"}
    with served(CONFIG, folder, **environ) as gateway, httpx.Client(base_url=gateway.url, timeout=PATIENCE) as http:
        yield http


def begin(client: httpx.Client, **json: object) -> Json:
    answer = client.post("/-/jobs", json=json)
    assert answer.status_code == 202, answer.text
    made: Json = answer.json()
    return made


def test_the_hub_is_searched_and_a_repository_says_what_fits(client: httpx.Client, test_model: Path) -> None:
    (found,) = client.get("/-/hub", params={"q": "tiny"}).json()["found"]
    assert (found["source"], found["downloads"]) == (f"hf:{REPO}", 12_345)
    offer = client.get(f"/-/hub/{REPO}").json()
    (variant,) = offer["variants"]
    assert (variant["source"], variant["size"], variant["fits"]) == (SOURCE, test_model.stat().st_size, True)
    assert (offer["about"]["architecture"], offer["about"]["context"]) == ("llama", 1024)
    assert client.get("/-/hub", params={"q": ""}).status_code == 400
    missing = client.get("/-/hub/someone/Nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_what_can_be_begun(client: httpx.Client) -> None:
    for json_, status in (
        ({"kind": "download", "model": "/etc/passwd"}, 400),
        ({"kind": "download", "model": "http://127.0.0.1:1"}, 400),
        ({"kind": "download", "model": "~nobodyhere/x.gguf"}, 400),
        ({"kind": "evaluate", "model": "nobody"}, 404),
        ({"kind": "tune", "model": "mine", "minutes": 1e9}, 400),
        ({"kind": "erase", "model": "mine"}, 400),
    ):
        assert client.post("/-/jobs", json=json_).status_code == status, json_
    assert client.get("/-/jobs").json() == {"jobs": []}


def wait_for(source: Source, line: str) -> None:
    """Until the source has been asked for it."""
    end = time.monotonic() + PATIENCE
    while line not in " ".join(source.asked):
        assert time.monotonic() < end, source.asked
        time.sleep(0.02)


def test_a_download_is_stopped(client: httpx.Client, source: Source, folder: Path) -> None:
    """Though its source sends nothing: another one may begin at once, also after a client has left."""
    other = {"model": "mine", "stream": False}
    source.hold.clear()
    job = begin(client, kind="download", model=SOURCE)
    wait_for(source, "/tiny.gguf")
    assert client.delete(f"/-/jobs/{job['id']}").json()["state"] == "stopped"
    assert client.post("/api/pull", json=other).status_code == 200
    source.asked.clear()
    with client.stream("POST", "/api/pull", json={"model": SOURCE.replace("hf:", "hf.co/")}):
        wait_for(source, "/tiny.gguf")
    end = time.monotonic() + PATIENCE
    while client.post("/api/pull", json=other).status_code == 429:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert len([line for line in source.asked if "/tiny.gguf" in line]) == 1, "it waited until the source seemed dead"
    source.hold.set()
    assert client.delete("/-/jobs/nothing").status_code == 404
    assert "tiny" not in load(folder / "config.yaml", {}).models


def test_a_torn_download_is_said_and_resumed(client: httpx.Client, source: Source, folder: Path) -> None:
    source.cuts = [1000] + [0] * ATTEMPTS
    begin(client, kind="download", model=SOURCE)
    torn = until(client, lambda job: job["state"] != "running")
    assert (torn["state"], "continues where this one stopped" in torn["said"]) == ("failed", True)
    source.asked.clear()
    source.hold.clear()
    begin(client, kind="download", model=SOURCE)
    busy = client.post("/-/jobs", json={"kind": "download", "model": SOURCE})
    assert (busy.status_code, busy.json()["error"]["code"]) == (429, "pull_running")
    source.hold.set()
    done = until(client, lambda job: job["state"] != "running")
    assert (done["state"], done["model"], done["done"]) == ("done", "tiny", done["total"])
    assert any(re.fullmatch(r"GET .*/tiny.gguf bytes=[1-9]\d*-", line) for line in source.asked)
    # One begun again takes the place of the torn one.
    assert [job["state"] for job in client.get("/-/jobs").json()["jobs"]] == ["done"]
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["echo", "mine", "tiny"]
    assert json.loads((folder / "state" / FILE).read_bytes())[0]["state"] == "done"


def test_what_was_cut_off_is_listed_so(tmp_path: Path) -> None:
    job = {"id": "1", "kind": "download", "subject": SOURCE, "at": 1.0, "state": "running", "done": 5, "total": 9}
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE).write_text(json.dumps([job]))
    with served(CONFIG, tmp_path) as gateway:
        (found,) = httpx.get(f"{gateway.url}/-/jobs", timeout=PATIENCE).json()["jobs"]
    assert (found["state"], found["done"]) == ("interrupted", 5)


def test_the_default_and_the_format_are_written(client: httpx.Client, folder: Path) -> None:
    assert client.post("/-/default", json={"model": "mine"}).json() == {"model": "mine", "active": True}
    answer = client.post("/-/models/mine/format", json={"tool_call_format": "pythonic"})
    assert answer.json()["tool_call_format"] == "pythonic"
    known = client.get("/-/models/mine").json()
    assert (known["tool_call_format"], known["there"], known["can_tune"]) == ("pythonic", True, True)
    assert (known["about"]["format"], known["about"]["architecture"]) == ("pythonic", "llama")
    assert known["memory"]["fits"]
    assert "tools" in known["template"]
    config = load(folder / "config.yaml", {})
    assert (config.active_model, config.models["mine"].tool_call_format) == ("mine", "pythonic")
    assert client.post("/-/models/mine/format", json={"tool_call_format": "no"}).status_code == 400
    assert client.post("/-/default", json={"model": "nobody"}).status_code == 404


def test_no_other_web_page_may(client: httpx.Client, folder: Path) -> None:
    """Not even where `cors_origins` lets every page chat. The gateway's own may."""
    before = (folder / "config.yaml").read_text()
    for headers in ({"origin": "https://app.example"}, {"sec-fetch-site": "cross-site"}):
        for method, path, body in (
            ("POST", "/-/jobs", {"kind": "download", "model": SOURCE}),
            ("DELETE", "/-/jobs/1", {}),
            ("POST", "/-/default", {"model": "mine"}),
            ("POST", "/-/models/mine/format", {"tool_call_format": "pythonic"}),
        ):
            answer = client.request(method, path, json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed"), path
    assert (folder / "config.yaml").read_text() == before
    own = {"origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert client.post("/-/default", json={"model": "mine"}, headers=own).status_code == 200


def test_old_evaluations_of_jobs_go(tmp_path: Path) -> None:
    names = [f"20260101T{number:06d}-m" for number in range(RESULTS + 5)]
    for name in (*names, "mine"):
        (tmp_path / name).mkdir()
    prune_results(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names[6:], "mine"]


def test_measuring_over_tls(tmp_path: Path, test_model: Path) -> None:
    """With a certificate that nobody vouches for, and isn't for this address: the commands know it by config.yaml."""
    written(tmp_path / "_models", "gateway.example")
    (tmp_path / "_models/mine.gguf").symlink_to(test_model)
    mine = "mine: {runtime: llama.cpp, path: mine.gguf, context_window: 1024, tool_call_format: pythonic}"
    port = free_port()
    config(
        tmp_path,
        f"active_model: echo\nmodels:\n  echo: {{runtime: echo}}\n  {mine}\nstate_dir: state\nlog: {{bodies: true}}\n"
        f"server: {{port: {port}, tls: {{cert: cert.pem, key: key.pem}}}}\n",
    )
    trust = trusting(tmp_path / "_models/cert.pem")
    with commands.serving(tmp_path) as process:
        assert process.stderr is not None
        process.stderr.readline()  # it listens
        address = f"https://127.0.0.1:{port}"
        with httpx.Client(base_url=address, verify=trust, trust_env=False, timeout=PATIENCE) as client:
            begin(client, kind="evaluate", model="echo")
            done = until(client, lambda job: job["state"] != "running")
            assert (done["state"], done["done"]) == ("done", done["total"]), done
            assert client.get(f"/-/evaluations/{done['result']}").status_code == 200
            asked = client.post("/v1/chat/completions", json={"model": "mine", "messages": [HELLO], "max_tokens": 4})
            assert asked.status_code == 200, asked.text
            # It asks the gateway for them. How fast the model is with which settings is for other tests.
            job = begin(client, kind="tune", model="mine")
            until(client, lambda job: job["lines"][:1] == ["mine: 1 recorded requests"])
            assert client.delete(f"/-/jobs/{job['id']}").json()["state"] == "stopped"
        said = ctxgate("model-test", "--base-url", f"{address}/v1", "--model", "echo", "--limit", "1", cwd=tmp_path)
        assert "CERTIFICATE_VERIFY_FAILED" not in said.stderr
        assert "quiet where due" in said.stdout
