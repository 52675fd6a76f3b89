"""Upgrades the tables to the latest revision.

Each feature has a branch of its own, so that none knows of another's tables: where its `migrations` says. A branch's
first revision has `down_revision = None` and `branch_labels = ("NAME",)`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine

from gateway.feature import Feature, others, ours

LOCATION = Path(__file__).parent / "migrations"
VERSIONS = "alembic_version"
"""The table with the revisions of the gateway and its own features. Other features have tables of their own, so that
the store still opens once such a feature is no longer installed."""

_ONE_AT_A_TIME = threading.Lock()
"""alembic has one context per process."""


def upgrade(engine: Engine) -> None:
    with _ONE_AT_A_TIME:
        _upgrade(engine)


def _upgrade(engine: Engine) -> None:
    with engine.connect().execution_options(ctxgate_write=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            # Serialises gateways that start at the same time. On SQLite the write transaction does that.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4000)")
        _run(connection, _folders(ours()), VERSIONS)
        for feature in others():
            if feature.migrations is not None:
                _run(connection, [*_folders([feature])], f"{VERSIONS}_{feature.name}")


def _run(connection: Connection, folders: Iterable[Path], versions: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(LOCATION).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(str, folders)).replace("%", "%%"))
    config.attributes |= {"connection": connection, "version_table": versions}
    command.upgrade(config, "heads")


def _folders(features: Iterable[Feature]) -> Iterable[Path]:
    for feature in features:
        if feature.migrations is not None and (spec := find_spec(feature.migrations)) is not None:
            yield from map(Path, spec.submodule_search_locations or ())
