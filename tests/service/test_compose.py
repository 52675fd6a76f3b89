"""deploy/compose.yaml and deploy/cluster: what Compose accepts, and what the Dockerfile and the configuration need."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.config import load
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/compose.yaml"
TEXT = FILE.read_text("utf-8")
GATEWAY: dict[str, Any] = yaml.safe_load(TEXT)["services"]["gateway"]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


def problems(document: Any) -> list[str]:
    import json

    text = files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text("utf-8")
    return [error.message for error in jsonschema.Draft202012Validator(json.loads(text)).iter_errors(document)]


def test_the_schema_of_compose_files_accepts_it() -> None:
    document = yaml.safe_load(TEXT)
    assert problems(document) == []
    document["services"]["gateway"]["restart_policy"] = "always"
    assert problems(document), "a key that there isn't is noticed"


def test_the_schema_accepts_the_cluster_and_its_parts_fit() -> None:
    document = yaml.safe_load((ROOT / "deploy/cluster/compose.yaml").read_text("utf-8"))
    assert problems(document) == []
    nodes = [service for service in document["services"].values() if "build" in service]
    assert len(nodes) == 4, "a head and three nodes"
    for node in nodes:
        assert (ROOT / "deploy/cluster" / node["build"]["context"]).resolve() == ROOT
        assert (ROOT / node["build"]["dockerfile"]).is_file()
        config = node["volumes"][0].partition(":")[0]
        written = {"PASSWORD": "p", "CTXGATE_KEY": "k"}
        loaded = load((ROOT / "deploy/cluster" / config).resolve(), written)
        assert written.keys() <= node["environment"].keys()
        assert "cluster" in loaded.sections
        assert {place.partition(":")[0] for place in node["volumes"][1:]} <= {*document["volumes"]}


def has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="docker compose isn't installed")
def test_compose_itself_accepts_it(tmp_path: Path) -> None:
    command = ["docker", "compose", "--file", str(FILE), "config", "--quiet"]
    done = subprocess.run(command, env={"CTXGATE_KEY": "k", "HOME": str(tmp_path)}, timeout=PATIENCE, check=False)
    assert done.returncode == 0


def test_it_fits_the_image() -> None:
    assert (FILE.parent / GATEWAY["build"]["context"]).resolve() == ROOT
    port = re.search(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert port is not None
    assert GATEWAY["ports"] == [f"127.0.0.1:{port[1]}:{port[1]}"], "no other machine reaches it unasked"
    folder, user = (
        re.search(r"^WORKDIR (\S+)$", DOCKERFILE, re.MULTILINE),
        re.search(r"useradd .*?--uid \d+ (\w+)", DOCKERFILE),
    )
    assert folder is not None
    assert user is not None
    assert {place.partition(":")[2] for place in GATEWAY["volumes"]} == {f"{folder[1]}/_models", f"/home/{user[1]}"}
    assert {place.partition(":")[0] for place in GATEWAY["volumes"]} == {*yaml.safe_load(TEXT)["volumes"]}


def test_it_needs_the_key_that_the_configuration_names() -> None:
    assert "${CTXGATE_KEY:-}" in yaml.safe_load((ROOT / "_models/config.yaml").read_text("utf-8"))["server"]["api_keys"]
    assert any(line.startswith("CTXGATE_KEY=${CTXGATE_KEY:?") for line in GATEWAY["environment"])


def test_the_container_can_do_little() -> None:
    assert GATEWAY["read_only"] is True
    assert GATEWAY["cap_drop"] == ["ALL"]
    assert GATEWAY["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "pid", "devices"} & {*GATEWAY}


def test_the_keys_beside_it_reach_neither_git_nor_the_image() -> None:
    assert "deploy/.env" in (ROOT / ".gitignore").read_text("utf-8").splitlines()
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    assert not any(line.startswith("!deploy") for line in ignored)
