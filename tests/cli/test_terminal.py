"""Output on a terminal, in a pipe, and with NO_COLOR."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ECHO, answering, config, ctxgate, environment, serving
from tests.cli.upstream import stream, upstream
from tests.models.pull.sources import Source
from tests.models.pull.sources import serving as source_serving
from tests.patience import PATIENCE
from tests.ports import free_port

CLEAR_LINE = "\x1b[2K"


class Terminal:
    """A command that writes to a terminal of its own."""

    def __init__(self, *args: str, cwd: Path, **extra: str) -> None:
        self._ours, theirs = os.openpty()
        env = environment(cwd, TERM="xterm-256color", COLUMNS="100", LINES="40", **extra)
        command = [sys.executable, "-m", "gateway", *args]
        self.process = subprocess.Popen(command, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.text = ""

    def read(self, until: str | None = None) -> str:
        """All output so far, once it holds `until`, or else once the command has ended."""
        while until is None or until not in self.text:
            try:
                data = os.read(self._ours, 65536)
            except OSError as error:  # Linux reports the end of a terminal so
                if error.errno != errno.EIO:
                    raise
                data = b""
            if not data:
                assert until is None, self.text
                break
            self.text += data.decode()
        return self.text

    def write(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        self.read()
        os.close(self._ours)
        return self.process.wait(PATIENCE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config(tmp_path, f"{ECHO}server: {{port: {free_port()}}}\n")
    return tmp_path


def test_a_table_is_styled_on_a_terminal_alone(folder: Path) -> None:
    terminal = Terminal("models", cwd=folder)
    assert terminal.end() == 0
    assert "\x1b[1m" in terminal.text
    plain = Terminal("models", cwd=folder, NO_COLOR="1")
    assert plain.end() == 0
    assert "\x1b" not in plain.text
    piped = ctxgate("models", cwd=folder, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b" not in piped.stdout
    assert plain.text.replace("\r\n", "\n") == piped.stdout


@pytest.mark.parametrize(("extra", "styled"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["colour", "NO_COLOR"])
def test_the_doctor_colours_states(extra: dict[str, str], styled: bool, folder: Path) -> None:
    terminal = Terminal("doctor", cwd=folder, **extra)
    assert terminal.end() == 0
    assert ("\x1b[32mok" in terminal.text) == styled
    assert ("\x1b" in terminal.text) == styled


def test_the_status_is_live_until_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    config(tmp_path, f"{ECHO}server: {{port: {port}}}\n")
    with serving(tmp_path), answering(port):
        terminal = Terminal("status", "--interval", "0.1", cwd=tmp_path)
        terminal.read(CLEAR_LINE)  # the second table in place of the first
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    assert terminal.text.count("built in") >= 2
    assert "Traceback" not in terminal.text
    assert terminal.text.endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize(("extra", "styled"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["colour", "NO_COLOR"])
def test_a_chat_dims_reasoning(extra: dict[str, str], styled: bool, tmp_path: Path) -> None:
    answer = stream({"reasoning_content": "hm"}, {"content": "a\x1b[2Jb"})
    with source_serving(Source(pages={"/v1/chat/completions": answer})) as source:
        upstream(tmp_path, source)
        terminal = Terminal("chat", cwd=tmp_path, **extra)
        terminal.read("> ")
        terminal.write("x\n")
        terminal.read("[2Jb")
        terminal.write("/quit\n")
        assert terminal.end() == 0
    assert ("\x1b[2mhm\x1b[0m" in terminal.text) == styled
    assert "a\ufffd[2Jb" in terminal.text
