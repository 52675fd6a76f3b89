"""The tree on the disk: idempotent, whole, and never more than its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.config import Model
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.ctx.launcher import launcher
from gateway.features.ctx.listing import aliases
from gateway.features.ctx.objects import ObjectName
from gateway.features.ctx.settings import CtxModel
from gateway.features.ctx.sync import sync
from gateway.features.ctx.tree import MAX_ROOT, find_root, objects
from tests.conftest import ROOT
from tests.ctx.configured import config
from tests.patience import PATIENCE


def listing(root: Path) -> dict[str, str]:
    """Every path with its mode and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        if ".ctxgate" in path.parts:
            continue
        content = f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(root))] = f"{path.lstat().st_mode:o} {content}"
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "t"


def test_a_second_sync_changes_nothing(root: Path) -> None:
    first = sync(root, config("qwen", "mine"))
    assert "model/qwen/qwen" in first.made
    for path in first.made:
        inside = [at for at, other in enumerate(first.made) if other.startswith(f"{path}.d")]
        assert max(inside, default=-1) < first.made.index(path), "whoever sees an object may run it at once"
    before, manifest = listing(root), (root / ".ctxgate/manifest.json").read_text()
    again = sync(root, config("qwen", "mine"))
    assert (again.made, again.changed, again.removed, again.kept) == ([], [], [], [])
    assert listing(root) == before
    assert (root / ".ctxgate/manifest.json").read_text() == manifest
    assert list((root / ".ctxgate").glob("aside*")) == []


def test_what_changes_is_changed_and_what_goes_is_removed(root: Path) -> None:
    sync(root, config("qwen", "mine"))
    report = sync(root, config("mine", aliases={"code": "mine"}))
    assert report.made == ["model/code.d", "model/code.sock", "model/code"]
    aliases = ("model/main", "model/helper", f"home/{os.geteuid()}/model/main")
    assert report.changed == [f"{alias}{end}" for alias in aliases for end in (".d", ".sock", "")]
    assert "model/qwen" in report.removed
    inside = [at for at, path in enumerate(report.removed) if path.startswith("model/qwen/qwen.d")]
    assert report.removed.index("model/qwen/qwen") < min(inside), "whoever runs an object needs its folder"
    assert not (root / "model/qwen").exists()
    fresh = root.with_name("fresh")
    sync(fresh, config("mine", aliases={"code": "mine"}))
    assert {path: text.replace(str(fresh), str(root)) for path, text in listing(fresh).items()} == listing(root)


def test_sync_leaves_what_a_person_created_or_changed(root: Path) -> None:
    sync(root, config("qwen", "mine"))
    control = root / "model/qwen/qwen.d"
    (control / "default").write_text("temperature=0\n")
    (control / "note").write_text("mine")
    (root / "model/own").mkdir()
    (root / "model/own/thing").write_text("mine")
    (root / "model/fast").symlink_to(root / "model/qwen/qwen")
    report = sync(root, config("qwen", "mine", aliases={"fast": "mine"}))
    assert report.kept == ["model/qwen/qwen.d/default", "model/fast"]
    assert (control / "default").read_text() == "temperature=0\n"
    assert os.readlink(root / "model/fast") == str(root / "model/qwen/qwen")
    # The model goes; a person's files stay.
    report = sync(root, config("mine"))
    assert report.kept == ["model/qwen/qwen.d/default", "model/qwen/qwen.d", "model/qwen"]
    assert sorted(path.name for path in control.iterdir()) == ["default", "note"]
    assert (root / "model/own/thing").read_text() == "mine"
    assert sync(root, config("mine")).kept == []


def test_an_edit_that_is_undone_is_ours_again(root: Path) -> None:
    sync(root, config("qwen"))
    driver = root / "model/qwen/qwen.d/driver"
    before = driver.read_text()
    driver.write_text("debug\n")
    assert sync(root, config("qwen")).kept == ["model/qwen/qwen.d/driver"]
    driver.write_text(before)
    assert sync(root, config("qwen")).kept == []
    model = CtxModel(driver={"default": ("debug",)})
    assert sync(root, config("qwen", models={"qwen": model})).changed == ["model/qwen/qwen.d/driver", "model/qwen/qwen"]


def test_objects_of_one_s_own_are_found(root: Path) -> None:
    sync(root, config("qwen"))
    (root / "model/qwen/tuned").write_text("x")
    (root / "model/qwen/tuned.d").mkdir()
    (root / "model/qwen/alone.d").mkdir()
    (root / "model/qwen/a b").write_text("x")
    (root / "model/qwen/a b.d").mkdir()
    assert [str(triple.name) for triple in objects(root)] == ["model/debug/echo", "model/qwen/qwen", "model/qwen/tuned"]


SYNC = """
import sys
from pathlib import Path
from tests.ctx.configured import config
from gateway.features.ctx import sync, tree
left = int(sys.argv[2])
whole = tree.write

def write(*args):
    global left
    left -= 1
    if not left:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    whole(*args)

sync.write = write
sync.sync(Path(sys.argv[1]), config(*sys.argv[3:]))
"""


@pytest.mark.parametrize("after", [1, 2, 5, 12, 20])
def test_killed_in_the_middle(after: int, root: Path) -> None:
    """The next one finishes what was begun, and takes all of it for its own."""
    sync(root, config("qwen", "mine"))
    command = [sys.executable, "-c", SYNC, str(root), str(after), "gpt", "mine", "gemma"]
    subprocess.run(command, cwd=ROOT, timeout=PATIENCE, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    entries = [path for path in root.glob("model/*/*") if path.is_file() and path.parent.suffix != ".d"]
    assert all(path.read_bytes() for path in entries)
    report = sync(root, config("gpt", "mine", "gemma"))
    assert report.kept == []
    fresh = root.with_name("fresh")
    sync(fresh, config("gpt", "mine", "gemma"))
    assert {path: text.replace(str(fresh), str(root)) for path, text in listing(fresh).items()} == listing(root)


def test_two_at_once(root: Path) -> None:
    command = [sys.executable, "-c", SYNC, str(root), "0", *(f"qwen{number}" for number in range(20))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, told = process.communicate(timeout=PATIENCE)
        assert (process.returncode, told) == (0, b"")
    assert sync(root, config(*(f"qwen{number}" for number in range(20)))).made == []


# What is refused


def test_what_cant_be_projected(root: Path) -> None:
    with pytest.raises(ProviderInvalidRequest, match=r"a can't be an object of /ctx as b:c\n    name it in ctx"):
        sync(root, config("a", models={"a": CtxModel(object="b:c")}))
    assert not root.exists()


# What follows what


def test_an_alias_has_all_three_parts_of_its_object(root: Path) -> None:
    sync(root, config("qwen", aliases={"code": "qwen"}, models={"qwen": CtxModel(session="none")}))
    parts = {name for name in os.listdir(root / "model") if name.startswith("code")}
    assert parts == {"code", "code.d"}  # a session of none has no socket
    assert (root / "model/code.d/id").read_text() == "qwen/qwen\n"
    sync(root, config("qwen", aliases={"code": "qwen"}))
    assert os.readlink(root / "model/code.sock") == str(root / "model/qwen/qwen.sock")
    assert aliases(root)["code"] == ObjectName("model", "qwen/qwen")


def test_metadata_follows_the_session_that_a_person_declared(root: Path) -> None:
    sync(root, config("qwen"))
    entry, control = root / "model/qwen/qwen", root / "model/qwen/qwen.d"
    assert "# cortexfs.session=socket\n" in entry.read_text()
    (control / "session").write_text("none\n")
    report = sync(root, config("qwen"))
    assert report.kept == ["model/qwen/qwen.d/session"]
    assert "# cortexfs.session=none\n" in entry.read_text()
    assert "session" not in (control / "cap").read_text().split()
    # The configuration decides again once the file is as we have made it.
    (control / "session").write_text("socket\n")
    assert sync(root, config("qwen")).kept == []
    assert "# cortexfs.session=socket\n" in entry.read_text()
    sync(root, config("qwen", models={"qwen": CtxModel(session="none")}))
    assert (control / "session").read_text() == "none\n"
    assert "# cortexfs.session=none\n" in entry.read_text()


def test_the_readme_names_what_is_there(root: Path) -> None:
    sync(root, config("qwen"))
    assert "model/PROVIDER/MODEL" in (root / "README").read_text()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: the runner is Python")
def test_the_runner_is_compiled_once(root: Path) -> None:
    sync(root, config("qwen", compile=True))
    program = root / "bin/cortexfs-object-runner"
    (kept,) = (root / ".ctxgate").glob("runner-*")
    assert program.read_bytes() == kept.read_bytes() != launcher()
    before = kept.stat().st_mtime_ns
    assert sync(root, config("qwen", compile=True)).changed == []
    assert kept.stat().st_mtime_ns == before
    assert sync(root, config("qwen")).changed == ["bin/cortexfs-object-runner"]
    assert program.read_bytes() == launcher()


def test_a_compiler_that_fails_leaves_python(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = root.with_name("cc")
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv("PATH", str(broken.parent))
    sync(root, config("qwen", compile=True))
    assert (root / "bin/cortexfs-object-runner").read_bytes() == launcher()


def test_a_root_that_everyone_can_write(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ProviderInvalidRequest, match="isn't safe"):
        sync(root, config("qwen"))


def test_a_symlink_in_the_place_of_a_folder(root: Path, tmp_path: Path) -> None:
    root.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (root / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProviderInvalidRequest, match="is in the way"):
        sync(root, config("qwen"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_root_that_can_t_be_written() -> None:
    with pytest.raises(ProviderUnavailable, match="can't be written"):
        sync(Path("/proc/ctx"), config("qwen"))


def test_a_damaged_manifest(root: Path) -> None:
    sync(root, config("qwen"))
    (root / ".ctxgate/manifest.json").write_text("{")
    with pytest.raises(ProviderUnavailable, match="is damaged: remove it"):
        sync(root, config("qwen"))


def test_no_secret_in_any_file(root: Path) -> None:
    model = Model(
        name="m", runtime="openai", base_url="https://far.example", api_key=SecretStr("s3cret"),
        defaults={"api_key": "s3cret", "temperature": 1},
    )  # fmt: skip
    sync(root, replace(config("m"), models={"m": model}))
    assert not any(b"s3cret" in path.read_bytes() for path in root.rglob("*") if path.is_file())


# Where


@pytest.mark.parametrize(
    ("given", "environ", "named", "expected"),
    [
        ("/a", {"CTX_ROOT": "/b", "XDG_RUNTIME_DIR": "/d"}, "/c", "/a"),
        (None, {"CTX_ROOT": "/b", "XDG_RUNTIME_DIR": "/d"}, "/c", "/b"),
        (None, {"CTX_ROOT": "", "XDG_RUNTIME_DIR": "/d"}, "/c", "/c"),
        (None, {"XDG_RUNTIME_DIR": "/d"}, None, "/ctx" if os.access("/ctx", os.W_OK) else "/d/ctx"),
    ],
)
def test_where_the_tree_is(given: str | None, environ: dict[str, str], named: str | None, expected: str) -> None:
    settings = config("qwen", root=Path(named) if named else None)
    assert find_root(Path(given) if given else None, settings, environ) == Path(expected)


def test_nowhere() -> None:
    if os.access("/ctx", os.W_OK):
        pytest.skip("this machine has a /ctx that can be written")
    with pytest.raises(ProviderInvalidRequest, match="no place for the tree"):
        find_root(None, config("qwen"), {})


@pytest.mark.parametrize("path", ["/a b", "/" + "a" * MAX_ROOT])
def test_a_path_that_can_t_be_a_root(path: str) -> None:
    with pytest.raises(ProviderInvalidRequest, match="can't be the root"):
        find_root(Path(path), config("qwen"), {})
