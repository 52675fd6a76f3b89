"""A feature of another package has tables of its own, and the store opens without the feature, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.commands import environment
from tests.conftest import ROOT
from tests.patience import PATIENCE

REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "notes_{number}"
down_revision = {before}
branch_labels = {labels}
depends_on = None


def upgrade() -> None:
    op.create_table("notes_{number}", sa.Column("id", sa.Integer, primary_key=True))
"""

OPENS = """
import asyncio, sqlalchemy
from gateway.store import Store

async def main():
    store = await Store.open("sqlite:///notes.db")
    names = await store.read(lambda connection: sqlalchemy.inspect(connection).get_table_names())
    print(*(name for name in names if "notes" in name))
    assert {"rooms", "batches", "usage"} <= {*names}
    await store.aclose()

asyncio.run(main())
"""


def tables(folder: Path, *, feature: bool) -> set[str]:
    """Opens the store; the names of the feature's tables."""
    path = f"{ROOT}{os.pathsep}{folder / 'packages'}" if feature else str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", OPENS],
        cwd=folder,
        env=environment(folder, PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_its_tables_stay_when_it_goes(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    revisions = packages / "notes" / "revisions"
    revisions.mkdir(parents=True)
    (packages / "notes" / "__init__.py").write_text(
        "from gateway.feature import Feature\nFEATURE = Feature(name='notes', migrations='notes.revisions')\n", "utf-8"
    )
    first = REVISION.format(number=1, before=None, labels='("notes",)')
    (revisions / "notes_1.py").write_text(first, "utf-8")
    record = packages / "notes-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: notes\nVersion: 1.0\n", "utf-8")
    (record / "entry_points.txt").write_text("[ctxgate.features]\nnotes = notes:FEATURE\n", "utf-8")

    assert tables(tmp_path, feature=False) == set()
    assert tables(tmp_path, feature=True) == {"notes_1", "alembic_version_notes"}
    assert tables(tmp_path, feature=False) == {"notes_1", "alembic_version_notes"}
    (revisions / "notes_2.py").write_text(REVISION.format(number=2, before="'notes_1'", labels=None), "utf-8")
    assert tables(tmp_path, feature=True) == {"notes_1", "notes_2", "alembic_version_notes"}
