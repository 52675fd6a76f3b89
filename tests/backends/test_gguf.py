"""GGUF metadata: the project's own model, and files made here."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends import load
from gateway.backends.base import Address
from gateway.backends.gguf import NotGGUF, metadata
from gateway.config import Model
from tests.support.gguf_files import TEMPLATE, file, string

numbers = st.integers(-(2**31), 2**31 - 1)
values = st.one_of(
    st.text(),
    st.booleans(),
    numbers,
    st.floats(allow_nan=False),
    st.lists(st.text(), min_size=1),
    st.lists(numbers, min_size=1),
)


@given(entries=st.dictionaries(st.text(), values))
def test_what_was_written_is_read(entries: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("g") / "m.gguf"
    path.write_bytes(file(**entries))
    read = metadata(path, [*entries, "not there"])
    assert read == {key: None if isinstance(value, list) else value for key, value in entries.items()}


@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_a_broken_file_is_refused_or_read_never_worse(
    data: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("g") / "m.gguf"
    whole = file(**{"general.name": "a", "tokens": ["x", "y"], TEMPLATE: "t"})
    path.write_bytes(whole[:cut] + data)
    try:
        assert metadata(path, [TEMPLATE]).keys() <= {TEMPLATE}
    except NotGGUF as error:
        assert str(path) in str(error)  # noqa: PT017


ENDLESS = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("a") + struct.pack("<IIQ", 9, 5, 2**63)


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\3\4", b"GGUF" + struct.pack("<IQQ", 1, 0, 0), ENDLESS],
    ids=["empty", "zip", "v1", "an endless array"],
)
def test_not_gguf(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(NotGGUF):
        metadata(tmp_path / "m", [TEMPLATE])


def test_the_projects_own_model(test_model: Path) -> None:
    read = metadata(test_model, ["general.architecture", TEMPLATE])
    assert read["general.architecture"] == "llama"
    assert "<|tool_list_start|>" in read[TEMPLATE]


@pytest.mark.parametrize(
    ("data", "takes"),
    [
        (file(**{TEMPLATE: "{% if tools %}"}), True),
        (file(**{TEMPLATE: "{{ messages }}"}), False),
        (file(), False),
        (b"broken", True),
    ],
    ids=["tools", "none", "no template", "the engine will say what is wrong with it"],
)
async def test_llama_cpp_python_takes_tools_by_the_weights(data: bytes, takes: bool, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    model = Model(name="a", runtime="llama-cpp-python", path=tmp_path / "m.gguf")
    backend = load(model.runtime)(model, Address(port=1))
    assert await backend.takes_tools() is takes
