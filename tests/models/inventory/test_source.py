"""What `ctxgate add` takes, and what it makes of names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.config.fields import MODEL_NAME
from gateway.errors import ProviderInvalidModel, ProviderInvalidRequest
from gateway.features.models.inventory import entry
from gateway.features.models.inventory.entry import Line
from gateway.features.models.inventory.facts import printable, quantization
from gateway.features.models.inventory.hub import chosen
from gateway.features.models.inventory.source import AtURL, Hub, InOllama, Local, Source, parse
from gateway.features.models.pull.hub import Remote


@pytest.mark.parametrize(
    ("written", "source"),
    [
        ("hf:org/repo", Hub("org/repo")),
        ("hf:org/Re.po-GGUF:Q4_K_M", Hub("org/Re.po-GGUF", "Q4_K_M")),
        ("hf:org/repo@v1:q8_0", Hub("org/repo", "q8_0", "v1")),
        ("hf.co/org/repo:Q4_0", Hub("org/repo", "Q4_0")),
        ("https://huggingface.co/org/repo/", Hub("org/repo")),
        ("ollama:qwen3:4b", InOllama("qwen3:4b")),
        ("http://127.0.0.1:8080/v1", AtURL("http://127.0.0.1:8080")),
        ("unix:/run/engine.sock", AtURL("unix:/run/engine.sock")),
        ("models/a.gguf", Local(Path("models/a.gguf"))),
        ("C:/models", Local(Path("C:/models"))),
    ],
)
def test_sources(written: str, source: Source) -> None:
    assert parse(written) == source


@pytest.mark.parametrize("written", ["", "hf:", "hf:repo", "hf:a/b/c", "hf:org/repo:", "https://hf.co/"])
def test_no_sources(written: str) -> None:
    with pytest.raises(ProviderInvalidRequest):
        parse(written)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("Qwen3-4B-Instruct-2507-Q4_K_M.gguf", "Q4_K_M"),
        ("model.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("llama-f16.gguf", "F16"),
        ("Q4_0/big-00001-of-00002.gguf", "Q4_0"),
        ("tiny.gguf", ""),
    ],
)
def test_quantizations(file: str, found: str) -> None:
    assert quantization(file) == found


def files(*names: str) -> list[Remote]:
    return [Remote(name, 1, None) for name in names]


SEVERAL = files("m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf")


@pytest.mark.parametrize(
    ("quant", "there", "file"),
    [
        (None, SEVERAL, "m-Q4_K_M.gguf"),
        ("q8_0", SEVERAL, "m-Q8_0.gguf"),
        ("m-Q2_K", SEVERAL, "m-Q2_K.gguf"),
        ("m-q2_k.gguf", SEVERAL, "m-Q2_K.gguf"),
        (None, files("tiny.gguf"), "tiny.gguf"),
    ],
)
def test_a_file_is_chosen(quant: str | None, there: list[Remote], file: str) -> None:
    assert chosen(Hub("org/repo", quant), there).path == file


@pytest.mark.parametrize(("quant", "there"), [("Q6_K", SEVERAL), (None, files("a.gguf", "b.gguf"))])
def test_no_file_is_chosen(quant: str | None, there: list[Remote]) -> None:
    with pytest.raises(ProviderInvalidModel, match=r"it has: Q2_K, Q4_K_M, Q8_0|one of: a\.gguf, b\.gguf"):
        chosen(Hub("org/repo", quant), there)


@given(st.text())
def test_every_file_gives_a_valid_name(written: str) -> None:
    name = entry.name_for(written, {"model": 1, "a": 1})
    assert MODEL_NAME.fullmatch(name)
    assert name not in ("default", "model", "a")


@example("", "@", [])
@example("", "a:", ["a"])
@example("", "-", ["-"])
@example("", "...", ["..."])
@given(
    st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from(["text", "a b", "1", "#"])),
)  # fmt: skip
def test_whatever_a_file_says_stays_in_comments_and_values(said: str, path: str, items: list[str]) -> None:
    """A line break in a model's metadata would otherwise be a key of config.yaml."""
    lines = [Line("path", path.replace("${", "$")), Line("number", 7, said), Line("list", items)]
    text = entry.write("1", said, [*lines, Line("pull", {"hub": path.replace("${", "$")})])
    value = path.replace("${", "$")
    assert yaml.safe_load(text) == {"1": {"path": value, "number": 7, "list": items, "pull": {"hub": value}}}


def test_a_path_that_looks_like_a_variable() -> None:
    with pytest.raises(ProviderInvalidRequest, match="means a variable"):
        entry.scalar("models/${HOME}.gguf")


def test_printable() -> None:
    assert printable("a\nb\x1b[31m\u202e") == "a?b?[31m?"
    assert len(printable("x" * 500)) == 80
