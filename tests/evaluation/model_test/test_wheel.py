"""The installed package tests models without the source checkout: its wheel in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import environment
from tests.conftest import ROOT
from tests.evaluation.model_test.swapping import FAST, written
from tests.patience import PATIENCE


def run(*words: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in environment(home).items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, words)], cwd=home, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment with the wheel, and this one's packages of others."""
    if find_spec("hatchling") is None:
        pytest.skip("no hatchling, which builds the wheel")
    folder = tmp_path_factory.mktemp("installed")
    build = "import sys, hatchling.build as build; print(build.build_wheel(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert made.returncode == 0, made.stderr
    done = run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", home=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(folder / made.stdout.split()[-1]).extractall(packages)
    # A folder that a .pth names is searched, but its own .pth files, such as that of the checkout, aren't read.
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", "utf-8")
    python = folder / "venv" / "bin" / "python"
    where = run(python, "-c", "import gateway; print(gateway.__file__)", home=folder)
    assert where.stdout.strip() == str(packages / "gateway" / "__init__.py"), where.stderr
    return python


def test_the_suites_are_in_the_package(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "-m", "gateway.cli.model_test", "list", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "smoke@" in done.stdout
    assert ": 314 cases" in done.stdout


@pytest.mark.slow  # test_swap.py has the same swap from the checkout
def test_a_swap_gated_by_smoke(installed: Path, tmp_path: Path, test_model: Path) -> None:
    config = written(tmp_path, test_model, "right")
    done = run(installed, "-m", "gateway", "swap", "wrong", "--config", config, "--gate", "smoke", *FAST, home=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "REGRESSION" in done.stdout
    assert "right stays the active model; nothing changed" in done.stderr
    reports = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("report.html")]
    assert [parts[-5:-3] for parts in reports] == [("runs", "swap")] * 2  # in the user's folders, not in the package's


def test_a_swap_gated_by_traffic(installed: Path, tmp_path: Path) -> None:
    """As far as asking for the recordings; the rest is in test_swap_traffic.py."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "active_model: a\nserver: {port: 9}\nmodels:\n  a: {runtime: echo}\n  b: {runtime: echo}\n", "utf-8"
    )
    done = run(installed, "-m", "gateway", "swap", "b", "--config", config, "--gate", "traffic", home=tmp_path)
    assert "no gateway answers at http://127.0.0.1:9" in done.stderr
