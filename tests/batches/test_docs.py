"""docs/batches.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gateway.features.batches import lines, runner
from gateway.features.batches.batch_store import MAX_OPEN
from gateway.features.batches.objects import MAX_FAULTS, UNANSWERED, WINDOW_SECONDS, Endpoint
from gateway.features.batches.settings import Batches
from tests.cli.commands import answering, config, serving
from tests.ports import free_port
from tests.readme.examples import examples
from tests.support.consoles import typed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/batches.md").read_text("utf-8")
FILE = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
CONSOLES = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_print_what_the_page_says(tmp_path: Path, test_model: Path) -> None:
    (program,) = [example for example in examples(PAGE) if example.kind == "python"]
    port = free_port()
    file = config(tmp_path, f"{FILE}state_dir: {tmp_path}/state\nserver: {{port: {port}}}\n")
    (file.parent / "test").mkdir()
    (file.parent / "test/ctxgate-test-tools.gguf").symlink_to(test_model)
    with serving(tmp_path), answering(port):
        assert program.run(f"127.0.0.1:{port}") == program.printed
        for console in CONSOLES:
            typed(console, tmp_path, port)


@pytest.mark.parametrize("code", UNANSWERED)
def test_the_page_names_every_reason(code: str) -> None:
    assert f"`{code}`" in PAGE


def test_the_page_names_the_bounds() -> None:
    text = " ".join(PAGE.split())
    assert f"up to {runner.ATTEMPTS} times" in text
    assert f"({', '.join(map(str, lines.AGAIN))}) is retried" in text
    assert f"a {lines.BUSY} for as long" in text
    assert f"{WINDOW_SECONDS // 3600} hours after the start" in text
    assert f"the first {MAX_FAULTS}" in text
    assert f"a user {MAX_OPEN} open batches" in text
    assert {f"batches.{name}" for name in Batches.__struct_fields__} <= set(re.findall(r"`([a-z_.]+)`", PAGE))
    assert all(f"`{endpoint}`" in text for endpoint in get_args(Endpoint))
