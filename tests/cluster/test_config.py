"""`cluster:` in config.yaml, and `ctxgate cluster check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config import ConfigError, Model, PullSource, load
from gateway.config.values import Spread
from gateway.errors import ProviderInvalidResponse
from gateway.features.cluster.check import check
from gateway.features.cluster.settings import Cluster, ClusterTLS
from gateway.features.cluster.values import fingerprint, placeable
from gateway.features.cluster.weights import in_folder, provide
from gateway.features.models.pull.files import digest
from tests.cli.commands import ctxgate
from tests.store.postgresql import start

TOP = "active_model: m\nstore: postgresql://ctxgate@db/ctxgate\ncluster: {gateway_url: 'http://{host}:4000'}\n"


def read(folder: Path, model: str, top: str = TOP) -> Model:
    file = folder / "config.yaml"
    file.write_text(f"{top}models:\n  m: {{runtime: llama.cpp, path: m.gguf{model}}}\n")
    return load(file, {}).models["m"]


@pytest.mark.parametrize(
    ("written", "spread"),
    [
        ("", Spread()),
        (", replicas: {min: 1, max: 4}", Spread(min=1, max=4)),
        (", replicas: {min: 3}", Spread(min=3, max=3)),
        (", replicas: {max: 3}, placement: pack", Spread(max=3, placing="pack")),
        (", replicas: once", Spread(min=1)),
        (", preload: true", Spread(min=1)),
        (", nodes: {disk: ssd}", Spread(nodes={"disk": "ssd"})),
    ],
)
def test_how_many_and_where(tmp_path: Path, written: str, spread: Spread) -> None:
    found = read(tmp_path, written)
    assert found.spread == spread
    assert placeable(found)


@pytest.mark.parametrize(
    ("model", "top", "problem"),
    [
        (", replicas: {min: 3, max: 2}", TOP, "models.m.replicas: min is above max"),
        (", replicas: once", "active_model: m\n", "models.m.replicas is for a cluster, and there is none"),
        (", nodes: {a: b}", "active_model: m\n", "models.m.nodes is for a cluster, and there is none"),
        ("", "active_model: m\ncluster: {}\n", "cluster: the machines share their state in PostgreSQL"),
        ("", TOP.replace("'http", "'ftp"), "cluster.gateway_url"),
    ],
)
def test_what_contradicts_itself(tmp_path: Path, model: str, top: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        read(tmp_path, model, top)


def test_tls_names_its_files(tmp_path: Path) -> None:
    top = TOP.replace("gateway_url", "tls: {cert_file: a.pem, key_file: a.key}, ray: 'ray://head:10001', gateway_url")
    read(tmp_path, "", top)
    cluster = load(tmp_path / "config.yaml", {}).section(Cluster)
    assert cluster == Cluster(
        ray="ray://head:10001", tls=ClusterTLS(cert_file=tmp_path / "a.pem", key_file=tmp_path / "a.key")
    )


def test_who_else_serves_a_model_keeps_it(tmp_path: Path) -> None:
    plain = read(tmp_path, "")
    assert not placeable(read(tmp_path, ", port: 8080"))
    assert fingerprint(plain) != fingerprint(read(tmp_path, ", context_window: 512"))
    assert fingerprint(plain) == fingerprint(read(tmp_path, ", temperature: 0.5, replicas: once"))


async def test_check_says_what_is_missing(tmp_path: Path) -> None:
    with start() as server:
        top = TOP.replace("postgresql://ctxgate@db/ctxgate", server.database())
        read(tmp_path, "", top.replace("gateway_url", "ray: '127.0.0.1:1', gateway_url"))
        found = {each.what: each for each in await check(load(tmp_path / "config.yaml", {}))}
    assert {name for name, each in found.items() if each.cure} == {"Ray", "port", "weights of m"}
    assert found["Ray"].found == "nobody answers at 127.0.0.1:1"
    assert found["clock"].found == "differs from PostgreSQL's by 0.0 s"
    assert found["port"].found == "the gateway listens on 127.0.0.1, which no other machine reaches"


async def test_check_without_postgresql(tmp_path: Path) -> None:
    top = TOP.replace("@db/", "@127.0.0.1:1/").replace("gateway_url", "ray: '127.0.0.1:1', gateway_url")
    read(tmp_path, "", top)
    found = {each.what: each for each in await check(load(tmp_path / "config.yaml", {}))}
    assert "can't be used" in found["PostgreSQL"].found
    assert found["PostgreSQL"].cure


def test_weights_come_from_the_shared_folder_by_their_hash(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "draft").write_bytes(b"weights")
    sha256 = digest(shared / "draft")
    (shared / "draft").rename(shared / f"{sha256}.gguf")
    source = PullSource(kind="hub", name="a/b", file="m.gguf", sha256=sha256)
    model = Model(name="m", runtime="llama.cpp", path=tmp_path / "node" / "m.gguf", pull=source)
    provide(model, shared)
    assert (tmp_path / "node" / "m.gguf").read_bytes() == b"weights"
    assert in_folder(shared, "0" * 64) is None
    assert in_folder(tmp_path / "nowhere", sha256) is None


def test_a_file_with_a_false_name_is_not_taken(tmp_path: Path) -> None:
    sha256 = "0" * 64
    (tmp_path / sha256).write_bytes(b"something else")
    source = PullSource(kind="hub", name="a/b", file="m.gguf", sha256=sha256)
    model = Model(name="m", runtime="llama.cpp", path=tmp_path / "node" / "m.gguf", pull=source)
    with pytest.raises(ProviderInvalidResponse, match="SHA-256"):
        provide(model, tmp_path)
    assert not (tmp_path / "node" / "m.gguf").exists()


def test_the_command_shows_what_is_missing_and_how_to_cure_it(tmp_path: Path) -> None:
    with start() as server:
        top = TOP.replace("postgresql://ctxgate@db/ctxgate", server.database())
        read(tmp_path, "", top.replace("gateway_url", "ray: '127.0.0.1:1', gateway_url"))
        done = ctxgate("cluster", "check", "--config", str(tmp_path / "config.yaml"), cwd=tmp_path)
        as_json = ctxgate("cluster", "check", "--json", "--config", str(tmp_path / "config.yaml"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    shown = {" ".join(line.split()[:2]) for line in done.stdout.splitlines()}
    assert {"ok packages", "!! Ray", "ok PostgreSQL", "ok clock", "ok key", "!! port", "!! weights"} <= shown
    found = {each["what"]: each for each in json.loads(as_json.stdout)}
    assert found["Ray"]["cure"] == "start Ray's head there: ray start --head"
    read(tmp_path, "", "active_model: m\n")
    alone = ctxgate("cluster", "check", "--config", str(tmp_path / "config.yaml"), cwd=tmp_path)
    assert alone.returncode == 2
    assert "has no cluster:; docs/cluster.md explains what to write" in alone.stderr
