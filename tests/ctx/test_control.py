"""Control files: read strictly, every mistake named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Model
from gateway.errors import ProviderInvalidModel
from gateway.features.ctx.control import (
    BadControlFile,
    Routes,
    defaults_text,
    parse_capabilities,
    parse_defaults,
    parse_session,
)
from gateway.features.ctx.metadata import projected
from gateway.features.ctx.objects import ObjectName, Triple, name_at
from gateway.features.ctx.policy import LIMITS, limits_text, parse_limits
from gateway.features.ctx.tree import read_control
from tests.conftest import ROOT
from tests.patience import PATIENCE

TABLE = "default=openai-chat\nexec=openai-chat\nsocket=openai-chat\nagent=openai-responses,openai-chat\n"


@pytest.mark.parametrize(
    ("text", "exec", "agent"),
    [
        ("debug\n", ("debug",), ("debug",)),
        ("debug", ("debug",), ("debug",)),
        ("\n# a comment\n debug \n", ("debug",), ("debug",)),
        (TABLE, ("openai-chat",), ("openai-responses", "openai-chat")),
        ("exec = a , b\ndefault=b,c\n", ("a", "b", "c"), ("b", "c")),
        ("agent=a\n", (), ("a",)),
    ],
)
def test_drivers(text: str, exec: tuple[str, ...], agent: tuple[str, ...]) -> None:
    """The use's own route first, then the default."""
    routes = Routes.parse(text)
    assert (routes.drivers("exec"), routes.drivers("agent")) == (exec, agent)
    assert Routes.parse(routes.text()) == routes


def test_the_table_is_written_as_the_abi_prints_it() -> None:
    assert Routes.parse(TABLE).text() == TABLE
    assert Routes.parse("debug").text() == "debug\n"


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("", ["nothing stands in it"]),
        ("# nothing\n\n", ["nothing stands in it"]),
        ("default=a\nsmall=b\n", ["line 2: unknown use 'small'"]),
        ("default=a\nb\n", ["line 2: unknown use 'b'"]),
        ("a\nb\n", ["line 1: unknown use 'a'", "line 2: unknown use 'b'"]),
        ("exec=a\nexec=b\n", ["line 2: a second line for 'exec'"]),
        ("exec=\n", ["line 1: a driver is missing for 'exec'"]),
        ("exec=a,,b\n", ["line 1: a driver is missing for 'exec'"]),
        ("exec=a b\n", ["line 1: not a driver's name: 'a b'"]),
        ("../x\n", ["line 1: not a driver's name: '../x'"]),
        (
            "exec=a\nexec=,-b\nsmall=x.d\n",
            [
                "line 2: a second line for 'exec'",
                "line 2: a driver is missing for 'exec'",
                "line 2: not a driver's name: '-b'",
                "line 3: unknown use 'small'",
                "line 3: not a driver's name: 'x.d'",
            ],
        ),
    ],
)
def test_mistakes_in_drivers(text: str, mistakes: list[str]) -> None:
    with pytest.raises(BadControlFile) as caught:
        Routes.parse(text)
    assert [str(mistake) for mistake in caught.value.mistakes] == mistakes
    holds = "one driver, or lines of default, exec, socket, agent as USE=DRIVER,DRIVER"
    assert str(caught.value) == f"driver: {'; '.join(mistakes)}. It holds {holds}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("temperature=0.7\nmax_tokens=64\n", {"temperature": 0.7, "max_tokens": 64}),
        ('stop=["a", "b"]\nuser=me\n', {"stop": ["a", "b"], "user": "me"}),
        ('a = "1" \nb=true\nc=null\nd==\n', {"a": "1", "b": True, "c": None, "d": "="}),
    ],
)
def test_defaults(text: str, expected: dict[str, Any]) -> None:
    assert parse_defaults(text) == expected


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("temperature", ["line 1: no value for 'temperature'"]),
        ("=1\n", ["line 1: not a key that can stand here: ''"]),
        ("a b=1", ["line 1: not a key that can stand here: 'a b'"]),
        (
            "messages=[]\nmodel=x",
            ["line 1: not a key that can stand here: 'messages'", "line 2: not a key that can stand here: 'model'"],
        ),
        ("a=1\na=2", ["line 2: a second line for 'a'"]),
    ],
)
def test_mistakes_in_defaults(text: str, mistakes: list[str]) -> None:
    with pytest.raises(BadControlFile) as caught:
        parse_defaults(text)
    assert [str(mistake) for mistake in caught.value.mistakes] == mistakes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("wall_seconds=0.5\nmodel_calls=3\n", {"wall_seconds": 0.5, "model_calls": 3}),
        ("tool_calls=0\noutput_tokens=1e6\n", {"tool_calls": 0, "output_tokens": 1_000_000}),
    ],
)
def test_limits(text: str, expected: dict[str, float]) -> None:
    assert parse_limits(text) == expected
    assert parse_limits(limits_text(expected)) == expected


@pytest.mark.parametrize(
    "line",
    [
        *("model_calls=0", "model_calls=0.5", "output_tokens=0", "wall_seconds=0", "wall_seconds=nan"),
        *("tool_calls=-1", "tool_calls=", "tool_calls=many", "model_calls=" + "9" * 400, "turns=1"),
    ],
)
def test_mistakes_in_limits(line: str) -> None:
    """A turn needs time, and a call of its model."""
    with pytest.raises(BadControlFile) as caught:
        parse_limits(f"# mine\n{line}\n")
    assert [str(mistake) for mistake in caught.value.mistakes] == [f"line 2: not a key that can stand here: {line!r}"]


@given(st.fixed_dictionaries({}, optional={name: st.integers(1, 10**15) for name in LIMITS}))
def test_limits_come_back_as_they_were(limits: dict[str, float]) -> None:
    assert parse_limits(limits_text(limits)) == limits


texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["temperature", "stop", "x.y", "extra-1"]), values))
def test_defaults_come_back_as_they_were(fields: dict[str, Any]) -> None:
    assert parse_defaults(defaults_text(fields)) == fields


@pytest.mark.parametrize("word", ["openai_responses", "anthropic_messages", "native_thread", "chat stream", "Chat"])
def test_capabilities_are_stable_words(word: str) -> None:
    assert parse_capabilities("chat\nstream\n") == ("chat", "stream")
    with pytest.raises(BadControlFile, match="line 2: unknown capability"):
        parse_capabilities(f"chat\n{word}\n")


@pytest.mark.parametrize("text", ["", "Socket", "native", "none socket"])
def test_sessions(text: str) -> None:
    assert (parse_session("none\n"), parse_session("socket")) == ("none", "socket")
    with pytest.raises(BadControlFile, match="unknown session"):
        parse_session(text)


# Files that are no texts


UNREADABLE = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from gateway.features.ctx.errors import code
from gateway.features.ctx.objects import ObjectName, Triple
from gateway.features.ctx.tree import read_control
from gateway.errors import GatewayError
if os.geteuid() == 0:
    os.setuid(65534)
try:
    read_control(Triple.of(Path(sys.argv[1]), ObjectName.parse("model/a/b")))
except GatewayError as error:
    print(code(error), error)
"""


def control_folder() -> Path:
    """Where another user can go, too: the tests may run as root, who may read everything."""
    root = Path(tempfile.mkdtemp(prefix="cg"))
    root.chmod(0o755)
    folder = root / "model/a/b.d"
    folder.mkdir(parents=True)
    (root / "model/a/b").write_text("#!/x\n")
    (folder / "id").write_text("a/b\n")
    (folder / "driver").write_text("debug\n")
    return root


@pytest.fixture
def root() -> Iterator[Path]:
    root = control_folder()
    yield root
    shutil.rmtree(root)


def test_a_file_that_may_not_be_read(root: Path) -> None:
    (root / "model/a/b.d/default").write_text("temperature=0\n")
    (root / "model/a/b.d/default").chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE, root, ROOT], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.startswith(f"EACCES the gateway may not read {root}/model/a/b.d/default: chmod u+r")


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)], ids=["fifo", "dir", "loop"]
)
def test_what_is_no_regular_file_is_a_mistake(make: Callable[[Path], None], root: Path) -> None:
    make(root / "model/a/b.d/default")
    with pytest.raises(BadControlFile, match=r"default: (not a plain file|can't be read)"):
        read_control(Triple.of(root, ObjectName.parse("model/a/b")))


# Objects of any kind


@pytest.mark.parametrize("text", ["model/openai/gpt-4o", "agent/coder", "tool/fs.read"])
def test_names_of_objects(text: str, tmp_path: Any) -> None:
    name = ObjectName.parse(text)
    assert str(name) == text
    triple = Triple.of(tmp_path, name)
    assert (triple.entry, triple.sock, triple.control) == tuple(
        tmp_path / f"{text}{end}" for end in ("", ".sock", ".d")
    )
    triple.entry.parent.mkdir(parents=True)
    triple.entry.touch()
    (tmp_path / "alias").symlink_to(triple.entry)
    assert name_at(tmp_path, tmp_path / "alias") == name


@pytest.mark.parametrize(
    "text", ["model/gpt-4o", "model/a/b/c", "agent/a/b", "tool/", "tool/x.d", "tool/x.sock", "room/x", "", "model/../x"]
)
def test_what_is_no_name_of_an_object(text: str) -> None:
    with pytest.raises(ProviderInvalidModel):
        ObjectName.parse(text)


def test_metadata_is_of_one_line_each_and_has_no_secret() -> None:
    model = Model(
        name="m",
        runtime="openai",
        base_url="https://far.example",
        display_name="two\nlines",
        defaults={"api_key": "s3cret", "token": "s3cret", "max_tokens": 5, "access_token": "s3cret"},
    )
    made = projected(ObjectName.parse("model/acme/m"), model, {}, "none", 7)
    assert made.defaults == {"max_tokens": 5}
    lines = made.metadata("/x").splitlines()
    assert lines[:6] == [
        "#!/x",
        "# cortexfs.id=acme/m",
        "# cortexfs.name=two lines",
        "# cortexfs.description=two lines, served by ctxgate with openai",
        "# cortexfs.type=chat",
        "# cortexfs.created_at=7",
    ]
    assert "session" not in made.capabilities


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"runtime": "llama.cpp"}, "chat stream session json_schema tool_call_syntax"),
        ({"runtime": "openai", "base_url": "http://x"}, "chat stream session json_schema tool_call_syntax"),
        ({"runtime": "mlx", "capabilities": ("text",)}, "chat stream session json_schema"),
        ({"runtime": "mlx", "capabilities": ("text", "tool_calling", "vision")},
         "chat stream session json_schema tool_call_syntax vision"),
        ({"runtime": "echo"}, "chat stream session"),
        ({"runtime": "llama.cpp", "role": "embedding"}, "embedding"),
        ({"runtime": "llama.cpp", "role": "rerank", "capabilities": ("text",)}, "rerank"),
    ],
)  # fmt: skip
def test_capabilities_tell_the_truth(given: dict[str, Any], expected: str) -> None:
    made = projected(ObjectName.parse("model/acme/m"), Model(name="m", **given), {}, "socket", None)
    assert " ".join(made.capabilities) == expected
    role = given.get("role", "chat")
    assert made.type == ("debug" if given["runtime"] == "echo" else role)
    assert made.session == ("socket" if role == "chat" else "none")
