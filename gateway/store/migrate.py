"""Upgrades the tables to the latest revision.

Each API has its own branch below `migrations/versions`, so that APIs know nothing of each other's tables. A branch's
first revision has `down_revision = None` and `branch_labels = ("NAME",)`.
"""

from __future__ import annotations

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

LOCATION = Path(__file__).parent / "migrations"

_ONE_AT_A_TIME = threading.Lock()
"""alembic has one context per process."""


def upgrade(engine: Engine) -> None:
    with _ONE_AT_A_TIME:
        _upgrade(engine)


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(LOCATION).replace("%", "%%"))
    with engine.connect().execution_options(ctxgate_write=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            # Serialises gateways that start at the same time. On SQLite the write transaction does that.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4000)")
        config.attributes["connection"] = connection
        command.upgrade(config, "heads")
