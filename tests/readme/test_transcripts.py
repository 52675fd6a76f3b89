"""What README.md shows is what happens: its examples run on real engines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme.examples import PAGE, Example, examples, gateway, rewritten

EXAMPLES = examples(PAGE.read_text("utf-8"))


@pytest.fixture(scope="module")
def address(smollm2: str, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("home")) as address:
        yield address


def test_the_page_has_a_chat_and_a_tool_call() -> None:
    assert [(example.kind, example.varies) for example in EXAMPLES] == [("console", True), ("python", False)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.kind for example in EXAMPLES])
def test_example(example: Example, address: str) -> None:
    if example.kind == "console" and (missing := [name for name in ("curl", "jq") if shutil.which(name) is None]):
        pytest.skip(f"the example needs {' and '.join(missing)}")
    printed = example.run(address)
    if example.varies:
        assert len(printed.splitlines()) == len(example.printed.splitlines())
        assert 20 < len(printed) < 500
    else:
        assert printed == example.printed


def test_only_what_is_printed_is_written_back() -> None:
    console = "```console\n$ echo \\\n    b\nold\n```\n"
    page = f"a\n\n{console}\n```python\nprint(1)\n```\n\n```text\nold\n```\n\n```sh\nc\n```\n"
    assert [example.source for example in examples(page)] == ["echo \\\n    b\n", "print(1)\n"]
    assert rewritten(page, lambda example: example.run("")) == page.replace("old", "b", 1).replace("old", "1")
