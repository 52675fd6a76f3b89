"""`ctxgate swap`"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.common import configuration
from gateway.errors import ProviderInvalidRequest, ProviderModelNotLoaded, ProviderUnavailable

if TYPE_CHECKING:
    from gateway.config import Config, Model

DESCRIPTION = """\
Makes another model the active one, if it doesn't call tools worse: both are asked the same questions, the candidate
through a gateway of its own beside the one that may be running. Without a regression active_model of config.yaml is
changed, and nothing else of the file; otherwise everything stays as it is."""
EXAMPLES = """\
examples:
  ctxgate swap qwen3-4b
  ctxgate swap qwen3-4b --gate smoke
  ctxgate swap qwen3-4b --baseline benchmarks/baselines/lfm25-1.2b.json
  ctxgate swap qwen3-4b --options="--stream both --targets localcowork"    those of scripts/model-test

exit codes are those of scripts/model-test: 0 promoted, 1 a regression or a target missed, 2 wrong command line,
3 a model that doesn't answer, 4 too many questions without an answer, 5 nothing to compare with
"""

ROOT = Path(__file__).resolve().parents[2]
"""The checkout. The benchmark with its cases is no part of the installed package."""

MEASURED = (0, 1)
"""Exit codes of a run that has scores. The active model needn't be good, only known."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the candidate, a model of config.yaml")
    parser.add_argument("--gate", default="core", metavar="SUITE", help="smoke, core, bfcl-mini, bfcl or a folder")
    parser.add_argument("--baseline", metavar="PATH", help="results of the active model; left out: it is asked now")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the results go; left out: below runs/swap")
    parser.add_argument("--options", default="", metavar="TEXT", help="options of scripts/model-test, for both runs")


def run(args: argparse.Namespace) -> int:
    config = configuration(args)
    active, candidate = config.resolve(None), config.resolve(args.model, "chat")
    if candidate.name == active.name:
        print(f"{active.name} is the active model already")
        return 0
    if not (ROOT / "benchmarks" / "model_test").is_dir():
        raise ProviderUnavailable(
            "the benchmark isn't part of the installed package: run ctxgate swap from a checkout of the source"
        )
    for model in (active, candidate) if args.baseline is None else (candidate,):
        _on_this_machine(model)
    _port_is_free(candidate)
    before = config.source.read_bytes()
    _promoted(before, candidate.name)  # what can't be written afterwards needn't be measured
    out = args.out or ROOT / "runs" / "swap" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    baseline = args.baseline
    if baseline is None:
        baseline = str(out / active.name)
        code = _test(config, active, args, out / active.name, "none")
        if code not in MEASURED:
            return _stays(code, active, f"{active.name} itself couldn't be measured")
    code = _test(config, candidate, args, out / candidate.name, baseline)
    if code:
        return _stays(code, active, f"{candidate.name} was not let through: see above, and {out / candidate.name}")
    _promote(config, before, candidate.name)
    print(f"\n{candidate.name} is the active model now: {config.source}")
    print(f"a gateway that runs takes it over by itself; back again: ctxgate swap {active.name}")
    return 0


def _stays(code: int, active: Model, why: str) -> int:
    print(f"\n{why}\n{active.name} stays the active model; nothing was changed", file=sys.stderr)
    return code


def _test(config: Config, model: Model, args: argparse.Namespace, out: Path, baseline: str) -> int:
    """The exit code of a run that serves the model for itself."""
    print(f"\n{model.name}: {args.gate}", file=sys.stderr)
    command = [sys.executable, "-m", "benchmarks.model_test", "run", "--serve", "--config", str(config.source)]
    command += ["--model", model.name, "--suite", args.gate, "--baseline", _from_here(baseline), "--fresh"]
    command += ["--out", str(out.resolve()), *shlex.split(args.options)]
    with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603
        # The run has to end its gateway, so it is asked to end and waited for, never killed.
        before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        try:
            code = process.wait()
            # As a shell tells it. A run interrupted while Python executes a string (a dataclass being made) ends by
            # SIGINT itself, even though it has caught the KeyboardInterrupt.
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:  # the run got it, too
            process.wait()
            return 130
        finally:
            signal.signal(signal.SIGTERM, before)


def _from_here(baseline: str) -> str:
    return str(Path(baseline).resolve()) if Path(baseline).exists() else baseline


def _on_this_machine(model: Model) -> None:
    if model.path is not None and not model.path.exists():
        cure = f"ctxgate pull {model.name}" if model.pull is not None else f"put it at {model.path}"
        raise ProviderModelNotLoaded(f"{model.name} isn't on this machine: {cure}")


def _port_is_free(candidate: Model) -> None:
    """A server on the candidate's port would be taken for it, though it may be the active model's."""
    if candidate.path is None or candidate.port is None:
        return
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", candidate.port)) == 0:
            raise ProviderInvalidRequest(
                f"something runs on port {candidate.port}, which {candidate.name} is to use, and would be tested in "
                f"its place: give {candidate.name} another port in config.yaml, or stop what runs there"
            )


def _promote(config: Config, before: bytes, name: str) -> None:
    """Writes the file in one step. Raises ProviderInvalidRequest if somebody else has changed it meanwhile."""
    from gateway.config import load

    # A link to the file stays a link.
    file = config.source.resolve()
    if file.read_bytes() != before:
        raise ProviderInvalidRequest(f"{file} was changed while {name} was tested: nothing was written; swap once more")
    handle, path = tempfile.mkstemp(dir=file.parent, prefix=".config-", suffix=".yaml")
    made = Path(path)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(_promoted(before, name))
        shutil.copymode(file, made)
        if load(made).active_model != name:
            raise ProviderInvalidRequest(f"active_model of {file} can't be changed by itself")
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)


def _promoted(text: bytes, name: str) -> bytes:
    """The file with another `active_model`; every other byte is as it was, comments and all.

    Raises ProviderInvalidRequest where the value isn't simply written there.
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
            "active_model is filled in from elsewhere: write the model's name there, or change the variable yourself"
        )
    start, end = found[0].start_mark.index, found[0].end_mark.index
    bom = "\ufeff" if text.startswith(b"\xef\xbb\xbf") else ""
    return (bom + written[:start] + name + written[end:]).encode()
