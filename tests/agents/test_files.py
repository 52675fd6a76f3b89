"""A room's files: what the tools do, and that nothing leads out of the room's folder."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.agents.tools.files import CODES
from gateway.features.agents.tools.vfs import JailedFileSystem, Limits, names
from gateway.features.rooms.workspace import folder
from tests.agents.conftest import Room
from tests.patience import PATIENCE

Make = Callable[..., Room]
PLENTY = Limits(10_000_000, 10_000, 64)


@pytest.fixture
def root(room: Room) -> Path:
    """The room's folder, with a few files."""
    files = room.files
    for path, text in TREE.items():
        files.makedirs(os.path.dirname(path), exist_ok=True) if "/" in path else None
        files.pipe_file(path, text.encode())
    return folder(room.config, "acme", "room-1")


TREE = {"a.txt": "A", "b.md": "grüße", ".hidden": "h", "d/one.txt": "1", "d/e/two.txt": "2", ".git/config": "c"}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the state folder, with a secret."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret.txt").write_text("hidden")
    (path / "inner").mkdir()
    return path


def paths(result: dict[str, Any]) -> list[str]:
    return [entry["path"] for entry in result["entries"]]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, ["/a.txt", "/b.md", "/d"]),
        ({"path": "/"}, ["/a.txt", "/b.md", "/d"]),
        ({"path": "d"}, ["/d/e", "/d/one.txt"]),
        ({"path": "./d//"}, ["/d/e", "/d/one.txt"]),
        ({"path": "/a.txt"}, ["/a.txt"]),
        ({"path": ".git"}, ["/.git/config"]),
        ({"all": True}, ["/.git", "/.hidden", "/a.txt", "/b.md", "/d"]),
        ({"recursive": True}, ["/a.txt", "/b.md", "/d", "/d/e", "/d/e/two.txt", "/d/one.txt"]),
        ({"recursive": True, "max_depth": 2}, ["/a.txt", "/b.md", "/d", "/d/e", "/d/one.txt"]),
        ({"recursive": True, "max_depth": 1}, ["/a.txt", "/b.md", "/d"]),
        ({"max_depth": 5}, ["/a.txt", "/b.md", "/d"]),
        ({"path": "d", "recursive": True}, ["/d/e", "/d/e/two.txt", "/d/one.txt"]),
    ],
)
async def test_ls(arguments: dict[str, Any], found: list[str], room: Room, root: Path) -> None:
    assert paths(await room.run("tool.ls", **arguments)) == found


async def test_ls_long(room: Room, root: Path) -> None:
    os.utime(root / "b.md", (0, 0))
    result = await room.run("tool.ls", path="b.md", long=True)
    entry = {"path": "/b.md", "type": "file", "size": 7, "modified": "1970-01-01T00:00:00Z", "mode": "-rw-------"}
    assert result["entries"] == [entry]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"path": "b.md"}, {"content": "grüße", "size": 7, "encoding": "utf-8", "truncated": False}),
        ({"path": "b.md", "max_chars": 3}, {"content": "grü", "truncated": True}),
        ({"path": "b.md", "max_chars": 5}, {"content": "grüße", "truncated": False}),
        ({"path": "b.md", "encoding": "latin-1"}, {"content": "grÃ¼Ã\x9fe"}),
        ({"path": "b.md", "encoding": "base64"}, {"content": "Z3LDvMOfZQ=="}),
        ({"path": "/d/e/two.txt"}, {"path": "/d/e/two.txt", "content": "2"}),
        ({"path": "b.md", "encoding": "ascii"}, {"error": "not_text"}),
        ({"path": "b.md", "encoding": "utf-16"}, {"error": "not_text"}),
        ({"path": "d"}, {"error": "not_a_file"}),
        ({"path": "none"}, {"error": "not_found"}),
        ({"path": "a.txt/x"}, {"error": "not_a_folder"}),
        ({"path": "/"}, {"error": "path_refused"}),
    ],
)
async def test_cat(arguments: dict[str, Any], told: dict[str, Any], room: Room, root: Path) -> None:
    result = await room.run("tool.cat", **arguments)
    if "error" in told:
        assert result["error"]["code"] == told["error"]
    else:
        assert result | told == result


async def test_cat_reads_no_more_than_it_returns(make_room: Make) -> None:
    room = make_room(max_result_chars=1000)
    room.files.pipe_file("big", "ü".encode() * 100_000)
    result = await room.run("tool.cat", path="big")
    assert (result["content"], result["size"], result["truncated"]) == ("ü" * 1000, 200_000, True)
    assert len((await room.run("tool.cat", path="big", encoding="base64"))["content"]) == 1000


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "*"}, ["/a.txt", "/b.md", "/d"]),
        ({"pattern": "*.txt"}, ["/a.txt"]),
        ({"pattern": "?.*"}, ["/a.txt", "/b.md"]),
        ({"pattern": "[ab].*"}, ["/a.txt", "/b.md"]),
        ({"pattern": "[!a].*"}, ["/b.md"]),
        ({"pattern": "**"}, ["/a.txt", "/b.md", "/d", "/d/e", "/d/e/two.txt", "/d/one.txt"]),
        ({"pattern": "**/*.txt"}, ["/a.txt", "/d/e/two.txt", "/d/one.txt"]),
        ({"pattern": "/**/e/**"}, ["/d/e", "/d/e/two.txt"]),
        ({"pattern": "d/*/*.txt"}, ["/d/e/two.txt"]),
        ({"pattern": "*.txt", "cwd": "d"}, ["/d/one.txt"]),
        ({"pattern": "**", "type": "directory"}, ["/d", "/d/e"]),
        ({"pattern": "**", "type": "file", "max_depth": 2}, ["/a.txt", "/b.md", "/d/one.txt"]),
        ({"pattern": ".*"}, ["/.git", "/.hidden"]),
        ({"pattern": "**/config"}, []),
        ({"pattern": "**/config", "all": True}, ["/.git/config"]),
        ({"pattern": "A.TXT"}, []),
    ],
)
async def test_glob(arguments: dict[str, Any], found: list[str], room: Room, root: Path) -> None:
    assert (await room.run("tool.glob", **arguments))["matches"] == found


async def test_a_glob_that_could_take_for_ever(room: Room) -> None:
    room.files.makedirs("/".join(["a" * 30] * 12))
    async with asyncio.timeout(PATIENCE):
        assert (await room.run("tool.glob", pattern="/".join(["**"] * 30 + ["*a*a*a*a*a*a*a*b"])))["matches"] == []
        assert await room.code("tool.glob", pattern="/".join(["*"] * 65)) == "invalid_arguments"


async def test_mkdir(room: Room, root: Path) -> None:
    assert await room.code("tool.mkdir", path="new/inner") == "not_found"
    assert await room.code("tool.mkdir", path="new/inner", parents=True) is None
    assert await room.code("tool.mkdir", path="new/inner", parents=True) is None
    assert await room.code("tool.mkdir", path="new/inner") == "exists"
    assert await room.code("tool.mkdir", path="a.txt", parents=True) == "exists"
    assert await room.code("tool.mkdir", path="a.txt/x", parents=True) == "not_a_folder"
    assert await room.code("tool.mkdir", path="/") == "path_refused"
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o700


async def test_rm(room: Room, root: Path) -> None:
    assert await room.code("tool.rm", path="none") == "not_found"
    assert await room.run("tool.rm", path="none", force=True) == {"path": "/none", "removed": False}
    assert await room.code("tool.rm", path="d", force=True) == "not_empty"
    assert await room.code("tool.rm", path="d", recursive=True) is None
    assert await room.code("tool.rm", path="a.txt") is None
    assert await room.code("tool.rm", path="/", recursive=True, force=True) == "path_refused"
    assert sorted(os.listdir(root)) == [".git", ".hidden", "b.md"]


async def test_mv(room: Room, root: Path) -> None:
    assert await room.code("tool.mv", source="a.txt", destination="b.md") == "exists"
    assert await room.code("tool.mv", source="a.txt", destination="d") == "exists"
    assert await room.code("tool.mv", source="none", destination="x") == "not_found"
    assert await room.code("tool.mv", source="a.txt", destination="none/x") == "not_found"
    assert await room.code("tool.mv", source="d", destination="d/e/f") == "path_refused"
    assert await room.code("tool.mv", source="/", destination="x") == "path_refused"
    assert await room.code("tool.mv", source="a.txt", destination="/") == "path_refused"
    assert await room.code("tool.mv", source="d", destination="moved") is None
    assert await room.code("tool.mv", source="a.txt", destination="moved/a.txt") is None
    assert (root / "moved/e/two.txt").read_text() == "2"
    assert (root / "moved/a.txt").read_text() == "A"
    assert (root / "b.md").read_text() == "grüße"


async def test_rooms_and_tenants_have_files_of_their_own(room: Room, root: Path) -> None:
    for other in (
        room.another("acme", "room-2"),
        room.another("other", "room-1"),
        room.another("acme\0room-1", ""),
    ):
        assert (await other.run("tool.ls", all=True))["entries"] == []
        assert await other.code("tool.cat", path="a.txt") == "not_found"
    escaping = room.another("/etc", "../../../outside")
    assert await escaping.code("tool.mkdir", path="x") is None
    assert not (root.parents[3] / "outside").exists()


# Out of the jail

WAYS_OUT = [
    *("..", "../", "/..", "../outside/secret.txt", "d/../../outside", "d/..", "/d/../..", "./..", "d/e/../../../x"),
    *("nul\0", "d/\0/x", "x" * 300, "\ud800"),
]


@pytest.mark.parametrize("path", WAYS_OUT, ids=repr)
@pytest.mark.parametrize("tool", ["tool.ls", "tool.cat", "tool.glob", "tool.mkdir", "tool.rm", "tool.mv"])
async def test_paths_that_lead_out(tool: str, path: str, room: Room, root: Path) -> None:
    before = sorted(os.walk(root.parents[2]))
    several: dict[str, list[dict[str, Any]]] = {
        "tool.glob": [{"pattern": "*", "cwd": path}, {"pattern": path}],
        "tool.mkdir": [{"path": path}, {"path": path, "parents": True}],
        "tool.rm": [{"path": path}, {"path": path, "recursive": True, "force": True}],
        "tool.mv": [{"source": path, "destination": "x"}, {"source": "a.txt", "destination": path}],
    }
    for arguments in several.get(tool, [{"path": path}]):
        assert await room.code(tool, **arguments) == "path_refused"
    assert sorted(os.walk(root.parents[2])) == before


async def test_absolute_paths_are_the_room_s_own(room: Room, root: Path, outside: Path) -> None:
    assert await room.code("tool.cat", path="/etc/passwd") == "not_found"
    assert await room.code("tool.cat", path=str(outside / "secret.txt")) == "not_found"
    assert await room.code("tool.mkdir", path=str(outside / "new"), parents=True) is None
    assert not (outside / "new").exists()
    for path in ("file:///etc/passwd", "room://a.txt", "~/x", "C:\\x", "\\..\\x"):
        assert await room.code("tool.cat", path=path) == "not_found"


LINKS: dict[str, Callable[[Path, Path], str]] = {
    "to a file outside": lambda root, outside: str(outside / "secret.txt"),
    "to a folder outside": lambda root, outside: str(outside),
    "upwards": lambda root, outside: os.path.relpath(outside, root),
    "to the root": lambda root, outside: "/",
    "to a file inside": lambda root, outside: "a.txt",
    "to a folder inside": lambda root, outside: "d",
    "to itself": lambda root, outside: "link",
    "to nothing": lambda root, outside: "nothing",
    "to a process's files": lambda root, outside: "/proc/self/environ",
}


@pytest.mark.parametrize("kind", LINKS)
async def test_links_made_by_another_process(kind: str, room: Room, root: Path, outside: Path) -> None:
    """None is followed, wherever it leads; it can be seen, moved and removed itself."""
    target = LINKS[kind](root, outside)
    process = await asyncio.create_subprocess_exec("ln", "-s", target, "link", cwd=root)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    calls: list[tuple[str, dict[str, Any]]] = [
        ("tool.cat", {"path": "link"}),
        ("tool.cat", {"path": "link/secret.txt"}),
        ("tool.ls", {"path": "link/"}),
        ("tool.ls", {"path": "link/inner"}),
        ("tool.mkdir", {"path": "link/new"}),
        ("tool.mkdir", {"path": "link/new/x", "parents": True}),
        ("tool.rm", {"path": "link/secret.txt"}),
        ("tool.rm", {"path": "link/inner", "recursive": True}),
        ("tool.mv", {"source": "link/secret.txt", "destination": "x"}),
        ("tool.mv", {"source": "a.txt", "destination": "link/x"}),
        ("tool.glob", {"pattern": "*", "cwd": "link/inner"}),
    ]
    for tool, arguments in calls:
        result = await room.run(tool, **arguments)
        if (tool, arguments) == ("tool.ls", {"path": "link/"}):
            assert result["entries"] == [{"path": "/link", "type": "link"}]
        else:
            assert result["error"]["code"] == "path_refused", (tool, arguments)
    listed = await room.run("tool.ls", recursive=True, long=True)
    assert {"path": "/link", "type": "link"}.items() <= next(
        e for e in listed["entries"] if e["path"] == "/link"
    ).items()
    assert target not in str(listed) or target in ("a.txt", "d", "link", "/")
    assert (await room.run("tool.glob", pattern="**/secret.txt"))["matches"] == []
    with pytest.raises(OSError, match="links"):
        room.files.pipe_file("link", b"x")
    assert await room.code("tool.mv", source="link", destination="d/link") is None
    assert await room.code("tool.rm", path="d", recursive=True) is None
    assert (outside / "secret.txt").read_text() == "hidden"
    assert sorted(os.listdir(outside)) == ["inner", "secret.txt"]
    assert (root / "a.txt").read_text() == "A"


async def test_hard_links_pipes_sockets_and_devices(room: Room, root: Path, outside: Path) -> None:
    os.link(outside / "secret.txt", root / "hard")
    os.mkfifo(root / "pipe")
    made = ["hard", "pipe"]
    if os.geteuid() == 0:
        os.mknod(root / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        made.append("device")
    async with asyncio.timeout(PATIENCE):
        for name in made:
            assert await room.code("tool.cat", path=name) == "path_refused", name
    listed = {entry["path"]: entry["type"] for entry in (await room.run("tool.ls"))["entries"]}
    assert (listed["/hard"], listed["/pipe"]) == ("file", "other")
    for name in made:
        assert await room.code("tool.rm", path=name) is None
    assert (outside / "secret.txt").read_text() == "hidden"


async def test_the_room_s_folder_replaced_by_a_link(room: Room, root: Path, outside: Path) -> None:
    os.rename(root, root.with_name("away"))
    os.symlink(outside, root)
    for tool, arguments in [("tool.ls", {}), ("tool.cat", {"path": "secret.txt"}), ("tool.mkdir", {"path": "x"})]:
        assert await room.code(tool, **arguments) in ("not_a_folder", "path_refused")


SWAP = """
import os, sys
root, outside = sys.argv[1:]
os.chdir(root)
os.symlink(outside, "spare")
print("ready", flush=True)
try:
    while True:
        os.rename("turn", "kept"); os.rename("spare", "turn")
        os.rename("turn", "spare"); os.rename("kept", "turn")
except FileNotFoundError:
    pass
"""


@pytest.fixture
def swapping(room: Room, root: Path, outside: Path) -> Iterator[None]:
    """Another process that puts a link to the outside in a folder's place and takes it away, all the time."""
    room.files.mkdir("turn")
    (root / "turn" / "secret.txt").write_text("inside")
    process = subprocess.Popen([sys.executable, "-c", SWAP, str(root), str(outside)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_folder_that_turns_into_a_link(room: Room, swapping: None, outside: Path) -> None:
    """Whenever the link is there: refused, or not found in between; never what lies behind it."""
    seen: dict[str | None, int] = {}
    for _ in range(150):
        result = await room.run("tool.cat", path="turn/secret.txt")
        assert result.get("content", "inside") == "inside"
        code = result.get("error", {}).get("code")
        seen[code] = seen.get(code, 0) + 1
        await room.run("tool.mkdir", path=f"turn/new{sum(seen.values())}")
        await room.run("tool.glob", pattern="turn/*")
        await room.run("tool.mv", source="turn/secret.txt", destination="turn/secret.txt2")
        await room.run("tool.mv", source="turn/secret.txt2", destination="turn/secret.txt")
        await room.run("tool.rm", path="turn/inner", recursive=True)
    assert set(seen) <= {None, "path_refused", "not_found", "not_a_folder"}
    assert sorted(os.listdir(outside)) == ["inner", "secret.txt"]
    assert (outside / "secret.txt").read_text() == "hidden"


PART = st.sampled_from(
    ["..", ".", "", "a", "link", "up", "d", "\0", "etc", "passwd", "secret.txt", " ", "*", "~", "\\"]
)
ANY_PATH = st.one_of(st.lists(PART, max_size=8).map("/".join), st.text(max_size=30))


@given(first=ANY_PATH, second=ANY_PATH)
@settings(max_examples=150)
def test_no_path_leads_out(first: str, second: str) -> None:
    """Any sequence of calls with any paths: an OSError that the model can be told, and the outside as it was."""
    with tempfile.TemporaryDirectory() as name:
        outside = Path(name) / "outside"
        outside.mkdir()
        (outside / "secret.txt").write_text("hidden")
        root = Path(name) / "jail" / "root"
        files = JailedFileSystem(root, PLENTY)
        files.makedirs("a/d")
        (root / "link").symlink_to(outside)
        (root / "a/up").symlink_to("../../..")
        calls: list[Callable[[], Any]] = [
            lambda: files.pipe_file(first, b"x"),
            lambda: files.mkdir(second),
            lambda: files.mv(first, second),
            lambda: [*files.below(first)],
            lambda: files.cat_file(second),
            lambda: files.info(first),
            lambda: files.rm(second, recursive=True),
            lambda: files.mv(second, first),
            lambda: files.rm(first, recursive=True),
        ]
        told: set[int | None] = set()
        for call in calls:
            try:
                found = call()
            except OSError as error:
                told.add(error.errno)
            else:
                assert found != b"hidden"
                assert "secret.txt" not in str(found) or "secret.txt" in first + second
        assert told <= set(CODES)
        assert os.listdir(outside) == ["secret.txt"]
        assert (outside / "secret.txt").read_text() == "hidden"
        assert sorted(os.listdir(name)) == ["jail", "outside"]
        assert os.listdir(root.parent) == ["root"]


@given(ANY_PATH)
def test_a_path_s_names_are_plain(path: str) -> None:
    try:
        found = names(path)
    except OSError as error:
        refused: int | None = error.errno
    else:
        refused = None
        assert not {"", ".", ".."} & set(found)
        assert not any("/" in name or "\0" in name for name in found)
    assert refused in (None, errno.EPERM, errno.EINVAL, errno.ENAMETOOLONG)


# Quotas


async def test_the_number_of_files(make_room: Make) -> None:
    room = make_room(files_max_count=3)
    assert await room.code("tool.mkdir", path="a/b", parents=True) is None
    assert await room.code("tool.mkdir", path="c/d", parents=True) == "quota_exceeded"
    assert (await room.run("tool.ls", recursive=True))["entries"] == [
        {"path": "/a", "type": "directory"},
        {"path": "/a/b", "type": "directory"},
    ]
    assert await room.code("tool.mkdir", path="c") is None
    assert await room.code("tool.mkdir", path="e") == "quota_exceeded"
    assert await room.code("tool.rm", path="c") is None
    assert await room.code("tool.mkdir", path="e") is None


async def test_bytes(make_room: Make) -> None:
    files = make_room(files_max_bytes=2000).files
    files.pipe_file("a", bytes(1500))
    with pytest.raises(OSError, match="2000 bytes") as caught:
        files.pipe_file("b", bytes(501))
    assert caught.value.errno == errno.EDQUOT
    files.pipe_file("b", bytes(500))
    files.pipe_file("a", bytes(1400))
    with pytest.raises(OSError, match="2000 bytes"):
        files.pipe_file("a", bytes(1501))
    with pytest.raises(FileExistsError):
        files.pipe_file("a", b"", mode="create")
    assert [(info["name"], info["size"]) for info in files.below("")] == [("a", 1400), ("b", 500)]


async def test_depth(make_room: Make) -> None:
    room = make_room(files_max_depth=3)
    assert await room.code("tool.mkdir", path="a/b/c", parents=True) is None
    assert await room.code("tool.mkdir", path="a/b/c/d") == "quota_exceeded"
    assert await room.code("tool.mkdir", path="x") is None
    assert await room.code("tool.mv", source="a", destination="x/a") == "quota_exceeded"
    assert await room.code("tool.mv", source="a/b", destination="x/b") is None


async def test_results_are_bounded(make_room: Make) -> None:
    for room_id, digits, count in (("many", 3, 500), ("long", 200, 100)):
        room = make_room().another("acme", room_id)
        room.files.info("/")
        for number in range(600):
            (folder(room.config, "acme", room_id) / f"{number:0{digits}}").touch()
        listed, matched = await room.run("tool.ls"), await room.run("tool.glob", pattern="*")
        assert (len(listed["entries"]), listed["truncated"]) == (count, True)
        assert (len(matched["matches"]), matched["truncated"]) == (count, True)


async def test_folders_deeper_than_any_path(room: Room) -> None:
    """Made by another process; they can be seen as far as paths go, and an end is put to it."""
    room.files.info("/")
    root = folder(room.config, "acme", "room-1")
    at = os.open(root, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("x" * 100, dir_fd=at)
        below = os.open("x" * 100, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert len((await room.run("tool.ls", recursive=True))["entries"]) <= 64
    assert await room.code("tool.rm", path="x" * 100, recursive=True) == "path_refused"


async def test_changes_at_once_keep_the_quota(make_room: Make) -> None:
    room = make_room(files_max_count=5)
    codes = await asyncio.gather(*(room.code("tool.mkdir", path=f"d{number}") for number in range(20)))
    assert sorted(codes, key=str) == [None] * 5 + ["quota_exceeded"] * 15


def test_a_change_that_does_not_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = JailedFileSystem(tmp_path / "root", PLENTY)
    monkeypatch.setattr("gateway.features.agents.tools.vfs.LOCK_SECONDS", 0.1)
    mkdir, begun, goes_on = os.mkdir, threading.Event(), threading.Event()

    def hangs(*args: Any, **options: Any) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE)
        mkdir(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", hangs)
        thread = threading.Thread(target=files.mkdir, args=("slow",))
        thread.start()
        assert begun.wait(PATIENCE)
    with pytest.raises(OSError, match="another change takes too long") as caught:
        JailedFileSystem(tmp_path / "root", PLENTY).mkdir("x")
    assert caught.value.errno == errno.EBUSY
    goes_on.set()
    thread.join(PATIENCE)
    files.mkdir("x")
    assert sorted(found["name"] for found in files.ls("")) == ["slow", "x"]


def test_it_is_an_fsspec_filesystem(tmp_path: Path) -> None:
    """What speaks fsspec can use a room's files."""
    files = JailedFileSystem(tmp_path / "root", PLENTY)
    files.makedirs("a/b", exist_ok=True)
    files.pipe_file("a/b/c.txt", b"text")
    assert files.cat_file("a/b/c.txt") == b"text"
    with files.open("a/b/c.txt", "r") as file:
        assert file.read() == "text"
    assert files.find("") == ["a/b/c.txt"]
    assert files.exists("a/b")
    assert files.isdir("a")
    assert files.size("a/b/c.txt") == 4
    files.rm_file("a/b/c.txt")
    files.rmdir("a/b")
    assert files.ls("a", detail=False) == []
    with pytest.raises(OSError, match="pipe_file"):
        files.open("x", "wb")
