"""Checks what a machine lacks to be a member of the cluster."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, text

from gateway.config import Config, Model
from gateway.engines.launch import weights_missing
from gateway.errors import GatewayError
from gateway.features.cluster import tables
from gateway.features.cluster.settings import Cluster
from gateway.features.cluster.values import EngineRow, placeable
from gateway.features.cluster.weights import in_folder
from gateway.services import store_url
from gateway.store import Store
from gateway.upstream import Upstream

CONNECT_SECONDS = 3.0
CLOCK_SECONDS = 2.0
"""Seconds. Leases and retention tolerate clocks that differ by less."""


class Finding(Struct, frozen=True):
    """cure: empty if all is well."""

    what: str
    found: str
    cure: str = ""


async def check(config: Config) -> list[Finding]:
    """Changes nothing, except that it creates the store's tables if they don't exist."""
    cluster = config.section(Cluster)
    findings = [_packages(), *_ray(cluster.ray), *await _store(config, cluster), _port(config)]
    findings += [_weights(config, model) for model in config.models.values() if placeable(model)]
    return findings


def _packages() -> Finding:
    missing = [name for name in ("ray", "psycopg") if find_spec(name) is None]
    if missing:
        return Finding("packages", f"{' and '.join(missing)} missing", "pip install 'ctxgate[cluster]'")
    return Finding("packages", "ray and psycopg are there")


def _ray(address: str) -> list[Finding]:
    if find_spec("ray") is None:
        return []
    if address != "auto":
        url = urlsplit(address if "//" in address else f"//{address}")
        if not _answers(url.hostname or "", url.port or 6379):
            return [Finding("Ray", f"nobody answers at {address}", "start Ray's head there: ray start --head")]
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        return [Finding("Ray", str(error).splitlines()[0], "run on this machine: ray start --address=HEAD:6379")]
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        hosts = ", ".join(sorted({str(node["NodeManagerAddress"]) for node in alive}))
        return [Finding("Ray", f"{len(alive)} nodes at {hosts}")]
    finally:
        ray.shutdown()


async def _store(config: Config, cluster: Cluster) -> list[Finding]:
    began = time.time()
    try:
        store = await Store.open(store_url(config))
    except GatewayError as error:
        return [Finding("PostgreSQL", error.message, "see that it runs, and that store: is right")]
    try:
        await store.write(tables.key)
        key, engines, clock = await store.read(_tables)
    finally:
        await store.aclose()
    ours = time.time()
    # Its clock was read in between.
    ahead = min(abs(clock - began), abs(clock - ours)) if not began <= clock <= ours else 0.0
    cure = "set the clocks of both by NTP" if ahead > CLOCK_SECONDS else ""
    return [
        Finding("PostgreSQL", "answers"),
        Finding("clock", f"differs from PostgreSQL's by {ahead:.1f} s", cure),
        await _key(engines, key, cluster.tls.ca_file if cluster.tls is not None else None),
    ]


def _tables(connection: Connection) -> tuple[str, list[EngineRow], float]:
    clock = connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
    return tables.key(connection), tables.engines(connection), float(clock)


async def _key(engines: list[EngineRow], key: str, ca_file: Path | None) -> Finding:
    from gateway.backends import Address

    for engine in engines:
        try:
            upstream = Upstream(
                Address.parse(engine.url), connect_timeout=CONNECT_SECONDS, silence_timeout=10, ca_file=ca_file
            )
        except GatewayError as error:
            return Finding("key", error.message, "correct cluster.tls.ca_file")
        head = upstream.head("GET", "/props", [("Authorization", f"Bearer {key}")])
        try:
            response = await upstream.request(head)
            response.close()
        except GatewayError as error:
            cure = f"open port {urlsplit(engine.url).port} of {engine.host} for this machine"
            return Finding("key", f"{engine.id} can't be reached: {error.message}", cure)
        finally:
            await upstream.aclose()
        if response.status in (401, 403):
            return Finding(
                "key", f"{engine.id} refuses it", f"end its process on {engine.host}: the cluster starts another one"
            )
        return Finding("key", f"{engine.id} on {engine.host} accepts it")
    return Finding("key", "is there; no engine runs that could be asked")


def _port(config: Config) -> Finding:
    cluster = config.section(Cluster)
    server = config.server
    url = cluster.gateway_url
    if server.uds is not None or server.is_private:
        where = f"unix:{server.uds}" if server.uds is not None else server.host
        return Finding("port", f"the gateway listens on {where}, which no other machine reaches", "set server.host")
    told = urlsplit(url.replace("{host}", "localhost")).port
    if told is not None and server.port and told != server.port:
        return Finding("port", f"the gateway listens on {server.port}", f"correct cluster.gateway_url: {url}")
    return Finding("port", f"{server.port} is open to other machines, as {url} says")


def _weights(config: Config, model: Model) -> Finding:
    cluster = config.section(Cluster)
    what = f"weights of {model.name}"
    missing = weights_missing(model)
    if missing is None:
        return Finding(what, "are there")
    sha256 = model.pull.sha256 if model.pull is not None else None
    if in_folder(cluster.weights, sha256) is not None:
        return Finding(what, f"lie in {cluster.weights}; the first engine here copies them")
    if model.pull is not None:
        return Finding(what, "are pulled by the first engine here")
    return Finding(what, missing.message, "copy them there, or add pull: to the model")


def _answers(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
        return True
    return False


def as_json(findings: list[Finding]) -> str:
    return msgspec.json.encode(findings).decode()
