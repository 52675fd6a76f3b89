"""https between gateways and engines, with Ray, PostgreSQL and a real engine."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.cluster.machines import Machines
from tests.cluster.nodes import nodes, until
from tests.patience import PATIENCE
from tests.store.postgresql import start

ray = pytest.importorskip("ray", reason="Ray isn't installed: pip install 'ctxgate[cluster]'")

TALK = [{"role": "user", "content": "Tell me of the sea. " * 20}]


def issue(authority: trustme.CA, folder: Path, *names: str) -> None:
    """Puts a certificate, its key and the authority where config.yaml says."""
    pair = authority.issue_cert(*names)
    pair.private_key_pem.write_to_path(folder / "key.pem")
    pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_engines_serve_https_to_gateways_that_trust_them(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    host = ray.util.get_node_ip_address()
    issue(authority, tmp_path, host, "127.0.0.1")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    tls = {name: str(tmp_path / file) for name, file in (("cert_file", "cert.pem"), ("key_file", "key.pem"))}
    prompts = {"save": "each_turn", "min_tokens": 32, "share": str(tmp_path / "share")}
    once: dict[str, Any] = {"replicas": "once"}
    with start() as server, nodes(1) as made, Machines(made, server, tmp_path).open() as machines:
        good = machines.gateway(
            "good", prompts, {"cluster": {"tls": {**tls, "ca_file": str(tmp_path / "ca.pem")}}}, **once
        )
        first = until(lambda: good.chat(TALK), "an answer")
        assert "choices" in first, first
        ((url, places),) = machines.rows("SELECT url, places FROM cluster_engines")
        assert url.startswith("https://")
        again = good.chat([*TALK, first["choices"][0]["message"], {"role": "user", "content": "Go on"}])
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0.9 * first["usage"]["prompt_tokens"]

        # Neither the engine nor the bookkeeper beside it speaks without TLS.
        key = machines.rows("SELECT value FROM cluster_keys WHERE name = 'engines'")[0][0]
        port = httpx.URL(url).port
        for each in (port, places):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://{host}:{each}/props", headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE)
        trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        assert httpx.get(f"{url}/props", verify=trusted, timeout=PATIENCE).status_code == 401

        # A gateway that trusts another authority sends nothing, and says why.
        short = {"queue_timeout_seconds": 2}
        trusts = {"cluster": {"tls": {**tls, "ca_file": str(tmp_path / "other.pem")}}, "engines": short}
        wary = machines.gateway("wary", prompts, trusts, **once)
        refused = until(lambda: wary.chat(TALK), "an answer")
        assert refused["status"] == 503, refused
        assert "has an untrusted certificate" in refused["error"]["message"]
        wary.close()

        # An engine that comes with another machine's certificate gets nothing, either.
        issue(authority, tmp_path, "wrong.example")
        trusts = {"cluster": {"tls": {**tls, "ca_file": str(tmp_path / "ca.pem")}}, "engines": short}
        (engine,) = machines.engine_processes(made.workers[0])
        engine.kill()
        until(lambda: machines.rows("SELECT url FROM cluster_engines") not in ([], [(url,)]), "another one runs")
        last = machines.gateway("last", prompts, trusts, **once)
        refused = until(lambda: last.chat(TALK), "an answer")
        assert refused["status"] == 503, refused
        assert "untrusted certificate" in refused["error"]["message"]
        assert "mismatch" in refused["error"]["message"]
