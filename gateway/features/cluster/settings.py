"""The section `cluster` of config.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gateway.config.file import Entry
from gateway.config.values import Config

if TYPE_CHECKING:
    from pydantic import StringConstraints

    from gateway.config.fields import FilePath, Seconds, Text
    from gateway.config.source import Document


class ClusterTLS(Entry, frozen=True, kw_only=True):
    """PEM files for https between engines and gateways."""

    cert_file: FilePath
    """Certificate of the node's engines."""
    key_file: FilePath
    """Its private key."""
    ca_file: FilePath | None = None
    """Authorities that gateways trust; if omitted: the system's."""


class Cluster(Entry, frozen=True, kw_only=True):
    """Several machines that share their engines; needs store: postgresql://… See docs/cluster.md."""

    ray: Annotated[str, StringConstraints(pattern=r"^(auto|(ray://)?[^/\s]+:\d+)$")] = "auto"
    """auto: the Ray node of this machine; or host:port, or ray://host:port."""
    gateway_url: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] = "http://{host}:4000"
    """Where other machines reach this machine's gateway; {host} is this machine's address."""
    host: Text | None = None
    """This machine's address; if omitted: the one from which it reaches the database."""
    weights: FilePath | None = None
    """Shared folder with weights, by SHA-256; nodes look there before they pull a model."""
    idle_seconds: Seconds = 300.0
    """Stop a replica that hasn't been needed for this many seconds."""
    tls: ClusterTLS | None = None
    """https between gateways and engines."""


def settle(document: Document, config: Config) -> Config:
    """See `gateway.feature.Feature.settle`."""
    if not (config.store or "").startswith("postgresql://"):
        document.problem(
            ("cluster",),
            "cluster: the machines share their state in PostgreSQL, and store: names none",
            "add store: postgresql://user:${PASSWORD}@host/database",
            key=True,
        )
    return config
