"""Keys of a model in config.yaml: written among the others, every comment kept."""

from __future__ import annotations

import pytest
import yaml

from gateway.config.edit import with_keys
from gateway.errors import ProviderInvalidRequest
from tests.conftest import ROOT

FILE = """\
# top
active_model: a  # the one
models:
  # before a
  a:   # at a
    # in a
    path: x.gguf  # the path
    threads: 4 # four
    draft:
      # why not
      ngram: false # off
    rope:
      # deep
      factor: 2  # two
    # after a

  # before b
  b: {path: y, threads: 1}  # flow
  c: {path: y,}
  d:
    path: z
    args:
    - "--x"
# the end"""


def edited(model: str, **keys: str) -> str:
    return with_keys(FILE.encode(), model, keys).decode()


def test_a_key_that_stands_there_gets_the_value() -> None:
    assert edited("a", threads="2") == FILE.replace("threads: 4 #", "threads: 2 #")
    assert edited("b", threads="2") == FILE.replace("threads: 1}", "threads: 2}")


def test_a_key_with_lines_of_its_own_gets_one_line() -> None:
    block = "draft:\n      # why not\n      ngram: false # off"
    assert edited("a", draft="{ngram: true}") == FILE.replace(block, "draft: {ngram: true} # off")


def test_a_new_key_follows_the_last_one() -> None:
    assert edited("a", kv_cache_type="q8_0") == FILE.replace("2  # two\n", "2  # two\n    kv_cache_type: q8_0\n")
    assert edited("d", threads="2") == FILE.replace('"--x"\n', '"--x"\n    threads: 2\n')


def test_a_new_key_in_braces() -> None:
    assert edited("b", mmap="true") == FILE.replace("threads: 1}", "threads: 1, mmap: true}")
    assert edited("c", mmap="true") == FILE.replace("{path: y,}", "{path: y, mmap: true}")


def test_a_comment_follows_the_value_and_replaces_its_own_older_one() -> None:
    first = with_keys(FILE.encode(), "a", {"threads": "2"}, comment="smoke 2026: 5 of 20")
    assert first.decode() == FILE.replace("threads: 4 # four", "threads: 2  # smoke 2026: 5 of 20 # four")
    again = with_keys(first, "a", {"threads": "3"}, comment="smoke 2027: 6 of 20")
    assert again.decode() == FILE.replace("threads: 4 # four", "threads: 3  # smoke 2027: 6 of 20 # four")
    new = with_keys(FILE.encode(), "d", {"threads": "2"}, comment="smoke 2026")
    assert new.decode() == FILE.replace('"--x"\n', '"--x"\n    threads: 2  # smoke 2026\n')
    newer = with_keys(new, "d", {"threads": "3", "mmap": "true"}, comment="smoke 2027")
    assert newer == new.replace(b"2  # smoke 2026\n", b"3  # smoke 2027\n    mmap: true\n"), "after the first key"
    last = with_keys(b"models:\n  a:\n    x: 1  # smoke 2026", "a", {"x": "2"}, comment="smoke 2027")
    assert last == b"models:\n  a:\n    x: 2  # smoke 2027"


def test_a_comment_has_no_place_in_braces() -> None:
    made = with_keys(FILE.encode(), "b", {"threads": "2"}, comment="smoke")
    assert made.decode() == edited("b", threads="2")


def test_a_file_without_a_last_line_break() -> None:
    text = "models:\n  a:\n    path: x"
    assert with_keys(text.encode(), "a", {"threads": "2"}) == f"{text}\n    threads: 2\n".encode()


def test_a_byte_order_mark_stays() -> None:
    text = b"\xef\xbb\xbfmodels:\n  a:\n    path: x\n"
    assert with_keys(text, "a", {"threads": "2"}) == text + b"    threads: 2\n"


@pytest.mark.parametrize("model", [*yaml.safe_load((ROOT / "_models/config.yaml").read_text("utf-8"))["models"]])
def test_every_model_of_our_own_file(model: str) -> None:
    before = (ROOT / "_models/config.yaml").read_bytes()
    after = with_keys(before, model, {"threads": "3", "draft": "{ngram: true}"})
    wanted = yaml.safe_load(before)
    wanted["models"][model] |= {"threads": 3, "draft": {"ngram": True}}
    assert yaml.safe_load(after) == wanted
    assert [line for line in before.splitlines() if b"#" in line] == [
        line for line in after.splitlines() if b"#" in line
    ]


def test_refuses_what_others_share() -> None:
    shared = b"models:\n  a: {rope: &r {factor: 2}}\n  b:\n    rope: *r\n"
    with pytest.raises(ProviderInvalidRequest, match="anchor"):
        with_keys(shared, "b", {"rope": "{factor: 3}"})
    with pytest.raises(ProviderInvalidRequest, match="nobody"):
        with_keys(FILE.encode(), "nobody", {"threads": "2"})
