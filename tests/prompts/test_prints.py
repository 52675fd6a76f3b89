"""What a saved prompt depends on: a file of another engine is never read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import Adapter, Draft, Model, Prompts, Runtime
from gateway.engines import prompts
from gateway.engines.recipe import Recipe
from gateway.prompts.saved import SavedPrompts

Made = tuple[Model, Recipe]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    files = {name: tmp_path / name for name in ("llama-server", "m.gguf", "p.gguf", "a.gguf", "d.gguf", "args.gguf")}
    for name, path in files.items():
        path.write_bytes(name.encode())
    engine = Runtime(
        adapters=(Adapter(path=files["a.gguf"]),),
        draft=Draft(model=files["d.gguf"]),
        args=("--lora", f"{files['args.gguf']}:0.5"),
    )
    model = Model(name="m", runtime="llama.cpp", path=files["m.gguf"], mmproj_path=files["p.gguf"], engine=engine)
    argv = (str(files["llama-server"]), "--model", str(files["m.gguf"]), "--port", "1", "--threads", "2", *engine.args)
    return model, Recipe("llama-server", argv, None, 1.0)


@pytest.fixture
def saved(tmp_path: Path) -> SavedPrompts:
    return SavedPrompts(Prompts(), tmp_path / "saved" / "prompts")


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


FILES = ["llama-server", "m.gguf", "p.gguf", "a.gguf", "d.gguf", "args.gguf"]


@pytest.mark.parametrize("name", FILES)
def test_each_file_counts(made: Made, saved: SavedPrompts, name: str) -> None:
    model, recipe = made
    before = prompts.prints(model, recipe), prompts.anywhere(model, recipe, saved)
    change(Path(recipe.argv[0]).with_name(name))
    after = prompts.prints(model, recipe), prompts.anywhere(model, recipe, saved)
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True]


def test_a_file_that_is_gone_is_told(made: Made) -> None:
    model, recipe = made
    assert model.path is not None
    model.path.unlink()
    with pytest.raises(OSError, match=r"m\.gguf"):
        prompts.prints(model, recipe)


VARIABLES: list[tuple[str, bool, bool]] = [
    ("LLAMA_ARG_CTX_SIZE", True, True),
    ("CUDA_VISIBLE_DEVICES", True, False),
    ("LLAMA_ARG_SSL_KEY_FILE", True, False),
    ("HOME", False, False),
]


@pytest.mark.parametrize(("name", "here", "anywhere"), VARIABLES, ids=[name for name, *_ in VARIABLES])
def test_variables(
    made: Made, saved: SavedPrompts, name: str, here: bool, anywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, recipe = made
    monkeypatch.delenv(name, raising=False)
    before = prompts.prints(model, recipe), prompts.anywhere(model, recipe, saved)
    monkeypatch.setenv(name, "7")
    after = prompts.prints(model, recipe), prompts.anywhere(model, recipe, saved)
    assert [one != other for one, other in zip(before, after, strict=True)] == [here, anywhere]
    # The recipe's own counts more.
    given = replace(recipe, env={name: "8"})
    assert (prompts.prints(model, given) != after[0]) is here


OPTIONS: list[tuple[Callable[[tuple[str, ...]], tuple[str, ...]], bool, bool]] = [
    (lambda argv: (*argv, "--ctx-size", "9"), True, True),
    (lambda argv: (*argv, "--threads", "9"), True, False),
    (lambda argv: (*argv, "--port", "9"), False, False),
]


@pytest.mark.parametrize(("given", "here", "anywhere"), OPTIONS, ids=["--ctx-size", "--threads", "--port"])
def test_options(made: Made, saved: SavedPrompts, given: Any, here: bool, anywhere: bool) -> None:
    model, recipe = made
    other = replace(recipe, argv=given(recipe.argv))
    assert (prompts.prints(model, other) != prompts.prints(model, recipe)) is here
    assert (prompts.anywhere(model, other, saved) != prompts.anywhere(model, recipe, saved)) is anywhere


def test_on_another_machine_the_same_files_lie_elsewhere(made: Made, saved: SavedPrompts, tmp_path: Path) -> None:
    model, recipe = made
    (tmp_path / "elsewhere").mkdir()
    for name in FILES:
        (tmp_path / "elsewhere" / name).write_bytes((tmp_path / name).read_bytes())

    def there(text: Any) -> Any:
        return type(text)(str(text).replace(str(tmp_path), str(tmp_path / "elsewhere")))

    engine = replace(
        model.engine,
        adapters=(Adapter(path=there(tmp_path / "a.gguf")),),
        draft=Draft(model=there(tmp_path / "d.gguf")),
        args=tuple(map(there, model.engine.args)),
    )
    moved = replace(model, path=there(model.path), mmproj_path=there(model.mmproj_path), engine=engine)
    again = replace(recipe, argv=tuple(map(there, recipe.argv)))
    assert prompts.anywhere(moved, again, saved) == prompts.anywhere(model, recipe, saved)
    assert prompts.prints(moved, again) != prompts.prints(model, recipe)
    assert (saved.path.parent / "hashes.json").is_file()


def test_the_build_of_the_embedded_engine_counts(
    made: Made, saved: SavedPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, recipe = made
    embedded = replace(recipe, engine="xllamacpp")
    one = prompts.prints(model, embedded), prompts.anywhere(model, embedded, saved)
    assert one[0][-1] == one[1][-1] == f"xllamacpp {prompts.version_of('xllamacpp')}"
    assert prompts.prints(model, recipe)[-1] == "llama-server"
    # Its program is Python, which doesn't matter on another machine.
    change(Path(recipe.argv[0]))
    assert prompts.anywhere(model, embedded, saved) == one[1]


def test_the_version_of_a_wheel() -> None:
    from importlib.metadata import version

    for project in ("xllamacpp", "httpx"):
        assert prompts.version_of(project) == version(project)
    assert prompts.version_of("no_such_project") == "unknown"


async def test_an_engine_that_saves_none_has_none(made: Made, saved: SavedPrompts) -> None:
    model, recipe = made
    assert await prompts.live(model, recipe, None) is None
    assert await prompts.live(model, recipe, saved) is None  # its command names no folder of prompts
    saves = replace(recipe, argv=(*recipe.argv, "--slot-save-path", f"{saved.path}/"))
    assert await prompts.live(model, saves, saved) is not None
    assert model.path is not None
    model.path.unlink()
    assert await prompts.live(model, saves, saved) is None
