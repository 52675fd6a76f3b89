"""`ctxgate swap`"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import FILE, Command, config_option, configuration
from gateway.errors import ProviderInvalidRequest, ProviderModelNotLoaded, ProviderUnavailable

if TYPE_CHECKING:
    from gateway.config import Config, Model

EXAMPLES = """\
examples:
  ctxgate swap qwen3-4b
  ctxgate swap qwen3-4b --gate smoke
  ctxgate swap qwen3-4b --baseline benchmarks/baselines/lfm25-1.2b.json
  ctxgate swap qwen3-4b --options="--stream both --targets localcowork"

exit codes are those of scripts/model-test: 0 promoted, 1 a regression or a missed target, 2 wrong command line,
3 a model that doesn't answer, 4 too many questions without an answer, 5 nothing comparable
"""

ROOT = Path(__file__).resolve().parents[2]
"""The checkout. The installed package doesn't include the benchmark and its cases."""

MEASURED = (0, 1)
"""Exit codes of a run that has scores. The active model may miss targets; it only needs scores."""


@dataclass(frozen=True)
class Test:
    """A run of scripts/model-test over one suite, which serves the model itself."""

    source: Path
    suite: str
    options: str

    def run(self, model: Model, out: Path, baseline: str) -> int:
        """Returns the exit code of scripts/model-test."""
        print(f"\n{model.name}: {self.suite}", file=sys.stderr)
        command = [sys.executable, "-m", "benchmarks.model_test", "run", "--serve", "--config", str(self.source)]
        command += ["--model", model.name, "--suite", self.suite, "--baseline", baseline, "--fresh"]
        command += ["--out", str(out.resolve()), *shlex.split(self.options)]
        with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603
            # The run has to stop its gateway, so it gets SIGTERM and time, never SIGKILL.
            before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
            try:
                code = process.wait()
                # As shells report a signal. SIGINT can end a run even where it catches KeyboardInterrupt, for instance
                # while Python executes the source of a dataclass.
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:  # the run received it too
                process.wait()
                return 130
            finally:
                signal.signal(signal.SIGTERM, before)


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option(
    "--gate", default="core", metavar="SUITE", help="smoke, core, bfcl-mini, bfcl or a folder (default: core)."
)
@click.option("--baseline", metavar="PATH", help="Results of the active model (default: test it now).")
@click.option("--out", type=FILE, metavar="DIR", help="Folder for the results (default: below runs/swap).")
@click.option("--options", default="", metavar="TEXT", help="Options of scripts/model-test for both runs.")
@click.argument("model", metavar="MODEL", help="The candidate, a model of config.yaml.")
def swap(config: Path | None, gate: str, baseline: str | None, out: Path | None, options: str, model: str) -> int:
    """Makes another model the active one, unless it calls tools worse.

    Asks both models the same questions, the candidate through a second gateway beside any running one. Without a
    regression, changes active_model in config.yaml and nothing else of the file; otherwise changes nothing.
    """
    loaded = configuration(config)
    active, candidate = loaded.resolve(None), loaded.resolve(model, "chat")
    if candidate.name == active.name:
        print(f"{active.name} is the active model already")
        return 0
    if not (ROOT / "benchmarks" / "model_test").is_dir():
        raise ProviderUnavailable("the installed package has no benchmark: run ctxgate swap from a source checkout")
    for each in (active, candidate) if baseline is None else (candidate,):
        _check_weights(each)
    _check_port(candidate)
    before = loaded.source.read_bytes()
    _with_active_model(before, candidate.name)  # fails now if the file can't be changed after the tests
    out = out or ROOT / "runs" / "swap" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    test = Test(loaded.source, gate, options)
    if baseline is None:
        baseline = str(out / active.name)
        code = test.run(active, out / active.name, "none")
        if code not in MEASURED:
            return _stays(code, active, f"{active.name} itself couldn't be tested")
    code = test.run(candidate, out / candidate.name, _absolute(baseline))
    if code:
        return _stays(code, active, f"{candidate.name} did not pass: see above, and {out / candidate.name}")
    _promote(loaded, before, candidate.name)
    print(f"\n{candidate.name} is the active model now: {loaded.source}")
    print(f"a running gateway switches to it by itself; to go back: ctxgate swap {active.name}")
    return 0


def _stays(code: int, active: Model, why: str) -> int:
    print(f"\n{why}\n{active.name} stays the active model; nothing changed", file=sys.stderr)
    return code


def _absolute(baseline: str) -> str:
    return str(Path(baseline).resolve()) if Path(baseline).exists() else baseline


def _check_weights(model: Model) -> None:
    if model.path is not None and not model.path.exists():
        cure = f"ctxgate pull {model.name}" if model.pull is not None else f"put it at {model.path}"
        raise ProviderModelNotLoaded(f"{model.name} isn't on this machine: {cure}")


def _check_port(candidate: Model) -> None:
    """Raises ProviderInvalidRequest if the candidate's port is taken: the test would ask that server instead."""
    if candidate.path is None or candidate.port is None:
        return
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", candidate.port)) == 0:
            raise ProviderInvalidRequest(
                f"another server holds port {candidate.port} of {candidate.name}, and the test would ask that one: "
                f"give {candidate.name} another port in config.yaml, or stop that server"
            )


def _promote(config: Config, before: bytes, name: str) -> None:
    """Replaces the file atomically. Raises ProviderInvalidRequest if somebody changed it since `before`."""
    from gateway.config import load

    # Resolved, so that a link to the file stays a link.
    file = config.source.resolve()
    if file.read_bytes() != before:
        raise ProviderInvalidRequest(f"{file} changed during the test of {name}: nothing was written; swap again")
    handle, path = tempfile.mkstemp(dir=file.parent, prefix=".config-", suffix=".yaml")
    made = Path(path)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(_with_active_model(before, name))
        shutil.copymode(file, made)
        if load(made).active_model != name:
            raise ProviderInvalidRequest(f"active_model of {file} can't be changed on its own")
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)


def _with_active_model(text: bytes, name: str) -> bytes:
    """Returns the file with another `active_model` and every other byte unchanged, comments included.

    Raises ProviderInvalidRequest if the value isn't a plain scalar in the file.
    """
    import yaml

    written = text.decode("utf-8-sig")
    root = yaml.compose(written, yaml.SafeLoader)
    found = [
        value
        for key, value in getattr(root, "value", ())
        if isinstance(key, yaml.ScalarNode) and key.value == "active_model"
    ]
    if len(found) != 1 or not isinstance(found[0], yaml.ScalarNode) or "$" in found[0].value:
        raise ProviderInvalidRequest(
            "active_model is no plain name in the file: write the model's name there, or change the variable yourself"
        )
    start, end = found[0].start_mark.index, found[0].end_mark.index
    bom = "\ufeff" if text.startswith(b"\xef\xbb\xbf") else ""
    return (bom + written[:start] + name + written[end:]).encode()
