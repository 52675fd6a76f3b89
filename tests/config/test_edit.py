"""config.yaml edited as text: all that isn't meant stays, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, load
from gateway.config.edit import with_active_model, with_model, without_model, write
from gateway.errors import ProviderInvalidRequest

ENTRY = "# Added by hand: it's new.\nnew:\n  runtime: echo  # says it again\n"
TEXT = b"""\
# head
active_model: one  # the active one

models:
  # --- the first ones ---

  # about one
  one:
    runtime: echo   # kept
    display_name: |
      a text
      of two lines

  # about two
  two: {runtime: echo}  # in one line
  three:
    runtime: echo
    capabilities:
      - text

# behind the models
log: {level: info}
#> models:
"""


def test_a_model_is_added_behind_the_last_one() -> None:
    before, _, after = TEXT.partition(b"      - text\n")
    new = b"\n  # Added by hand: it's new.\n  new:\n    runtime: echo  # says it again\n"
    assert with_model(TEXT, ENTRY) == before + b"      - text\n" + new + after


REMOVED = {
    "one": b"""\
models:
  # --- the first ones ---

  # about two
  two: {runtime: echo}  # in one line
""",
    "two": b"""\
      of two lines

  three:
    runtime: echo
""",
    "three": b"""\
  two: {runtime: echo}  # in one line

# behind the models
""",
}


@pytest.mark.parametrize("name", REMOVED)
def test_a_model_is_removed_with_its_comment(name: str) -> None:
    found = without_model(TEXT, name)
    assert REMOVED[name] in found
    data = yaml.safe_load(TEXT)
    del data["models"][name]
    assert yaml.safe_load(found) == data
    assert found.count(b"#") == TEXT.count(b"#") - {"one": 2, "two": 2, "three": 0}[name]


LINES = st.sampled_from(
    ["# a comment", "", "  # an inner comment", "log: {level: info}", "prompts:\n  save: off", "#> models:"]
)
MODELS = st.sampled_from(
    [
        "a: {runtime: echo}",
        "a: {runtime: echo}  # why",
        "a:\n    runtime: echo",
        "a:\n    runtime: echo  # why\n    stop: [x]",
        "a:\n    runtime: echo\n    stop:\n    - x # y",
        "a:\n    runtime: echo\n    display_name: |\n      x\n      # no comment\n",
        "a:\n    runtime: echo\n    display_name: >-\n      x\n\n      y",
        "a:\n    runtime: echo\n    pull:  # nothing",
    ]
)


@given(
    before=st.lists(LINES, max_size=3, unique=True),
    models=st.lists(MODELS, min_size=1, max_size=3),
    after=st.lists(LINES, max_size=4, unique=True),
    end=st.sampled_from(["\n", "", "\n\n"]),
    bom=st.booleans(),
)
def test_adding_and_removing_leaves_the_file_as_it_was(
    before: list[str], models: list[str], after: list[str], end: str, bom: bool
) -> None:
    entries = [f"  m{number}{model[1:]}" for number, model in enumerate(models)]
    after = [line for line in after if line.startswith(("#", " ")) or line not in before]
    text = "\n".join([*before, "models:", *entries, *after]) + end
    data = yaml.safe_load(text)
    source = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    more = with_model(source, ENTRY)
    assert yaml.safe_load(more.decode("utf-8-sig")) == {
        **data, "models": {**data["models"], "new": {"runtime": "echo"}}
    }  # fmt: skip
    less = without_model(more, "new")
    assert yaml.safe_load(less.decode("utf-8-sig")) == data
    # All but an empty line.
    assert [line for line in less.split(b"\n") if line] == [line for line in source.split(b"\n") if line]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"active_model: a\nmodels: {a: {runtime: echo}}\n", "is written in braces"),
        (b"active_model: a\n", "is written in braces"),
        (b"- a\n", "isn't a mapping"),
        (b"", "isn't a mapping"),
    ],
)
def test_shapes_that_it_leaves_alone(text: bytes, message: str) -> None:
    with pytest.raises(ProviderInvalidRequest, match=message):
        with_model(text, ENTRY)
    with pytest.raises(ProviderInvalidRequest, match=message):
        without_model(text, "a")


def test_a_model_that_another_one_is_made_of(tmp_path: Path) -> None:
    """Its anchor would be missing: the file stays."""
    text = b"active_model: b\nmodels:\n  a: &a\n    runtime: echo\n  b: *a\n"
    file = tmp_path / "config.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError):
        write(file, text, without_model(text, "a"), lambda made: True)
    assert file.read_bytes() == text
    assert [*tmp_path.iterdir()] == [file]


def test_writing(tmp_path: Path) -> None:
    file, link = tmp_path / "real.yaml", tmp_path / "config.yaml"
    file.write_bytes(TEXT)
    file.chmod(0o640)
    link.symlink_to(file)
    text = file.read_bytes()
    with pytest.raises(ProviderInvalidRequest, match="can't be edited automatically"):
        write(link, text, with_active_model(text, "two"), lambda made: made.active_model == "three")
    write(link, text, with_active_model(text, "two"), lambda made: made.active_model == "two")
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert load(link).active_model == "two"
    with pytest.raises(ProviderInvalidRequest, match="changed meanwhile"):
        write(link, text, TEXT, lambda made: True)
