"""Programs may import what became features by the former names of their packages."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gateway import FORMER
from tests.cli.commands import environment
from tests.patience import PATIENCE


@pytest.mark.parametrize(("former", "now"), FORMER.items())
def test_a_former_name_is_the_same_module(former: str, now: str) -> None:
    module = import_module(f"gateway.{former}")
    assert module is import_module(f"gateway.features.{now}")
    assert module.__spec__ is not None
    assert module.__name__ == module.__spec__.name == f"gateway.features.{now}"


def test_so_are_the_modules_in_it() -> None:
    from gateway.features.rooms.workspace import files

    assert import_module("gateway.rooms.workspace").files is files


def test_a_module_that_never_was_is_missed_by_its_own_name() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"gateway\.features\.rooms\.nothing"):
        import_module("gateway.rooms.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"gateway\.nothing"):
        import_module("gateway.nothing")


def test_a_launcher_that_an_older_gateway_wrote_still_runs(tmp_path: Path) -> None:
    """Its last line, by which each object of /ctx starts."""
    script = "import sys\nfrom gateway.ctx.runner import main\nassert not {'asyncio', 'json', 'yaml'} & {*sys.modules}"
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(tmp_path), timeout=PATIENCE, check=True
    )
