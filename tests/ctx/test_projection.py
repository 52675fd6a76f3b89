"""Which object of /ctx a model is, and what can't be one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config, ConfigError, Model, load
from gateway.features.ctx.projection import ECHO, fitted, is_component, is_model_id, projection, provider
from gateway.features.ctx.settings import Ctx, CtxModel


def config(*models: Model, active: str | None = None, ctx: Ctx | None = None) -> Config:
    by_name = {model.name: model for model in models}
    return Config(
        source=Path("x"), active_model=active or models[0].name, models=by_name, sections={"ctx": ctx or Ctx()}
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Model(name="echo", runtime="echo"), "debug"),
        (Model(name="gpt-4o", runtime="openai", base_url="https://api.openai.com"), "openai"),
        (Model(name="claude-sonnet-4", runtime="openai", base_url="https://api.anthropic.com"), "anthropic"),
        (Model(name="gpt-5.4-mini", runtime="openai", base_url="https://api.lmm.best:9000"), "api.lmm.best"),
        (Model(name="m", runtime="openai", base_url="https://API.LMM.Best.:9000"), "api.lmm.best"),
        (Model(name="m", runtime="openai", base_url="https://bücher.example"), "xn--bcher-kva.example"),
        (
            Model(name="m", runtime="openai", base_url="http://[fd00::1]:1"),
            "fd00-0000-0000-0000-0000-0000-0000-0001",
        ),
        (Model(name="qwen3", runtime="openai", base_url="http://127.0.0.1:1"), "127.0.0.1"),
        (Model(name="qwen3", runtime="llama.cpp", base_url="https://far.example"), "far.example"),
        (Model(name="qwen3", runtime="llama.cpp", base_url="http://127.0.0.1:1"), "qwen"),
        (Model(name="lfm25-24b", runtime="llama.cpp", path=Path("x")), "liquidai"),
        (Model(name="mine", runtime="ollama", model_name="hub/Llama3.2:3b"), "meta-llama"),
        (Model(name="mine", runtime="mlx", path=Path("x")), "local"),
        (Model(name="mine", runtime="my.own:Engine"), "local"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_provider(model: Model, expected: str) -> None:
    assert provider(model) == expected
    assert is_component(expected)


@pytest.mark.parametrize("name", ["mine", "qwen3"])
def test_another_runtime_does_not_change_the_identity(name: str) -> None:
    runtimes = ("llama.cpp", "llama-cpp-python", "mlx", "ollama", "my.own:Engine")
    assert len({provider(Model(name=name, runtime=runtime)) for runtime in runtimes}) == 1


NAMES = {
    "a": True,
    "0.x_y+z-1": True,
    "a" * 64: True,
    "a" * 65: False,
    "": False,
    ".": False,
    "..": False,
    "-a": False,
    "_a": False,
    "a/b": False,
    "a\n": False,
    "a\0": False,
    "a b": False,
    "ä": False,
    "a.sock": False,
    "a.d": False,
    "a.dd": True,
    "sock": True,
}


@pytest.mark.parametrize(("name", "fits"), NAMES.items(), ids=map(repr, NAMES))
def test_names(name: str, fits: bool) -> None:
    assert is_component(name) is fits
    assert is_model_id(f"p/{name}") is fits


def test_the_echo_is_there_and_main_leads_to_it_only_where_nothing_else_is() -> None:
    alone = projection(config(Model(name="e", runtime="echo")))
    assert alone.objects == {"debug/e": "e", ECHO: None}
    assert projection(config(Model(name="echo", runtime="echo"))).aliases == {"main": ECHO, "helper": ECHO}
    made = projection(config(Model(name="lfm", runtime="mlx", path=Path("x"))))
    assert made.objects == {"liquidai/lfm": "lfm", ECHO: None}
    assert made.aliases == {"main": "liquidai/lfm", "helper": "liquidai/lfm"}


def test_aliases_and_users() -> None:
    ctx = Ctx(
        aliases={"helper": "echo", "code": "acme/coder"},
        users={1000: {"main": "gpt"}},
        models={"gpt": CtxModel(object="acme/coder")},
    )
    made = projection(config(Model(name="echo", runtime="echo"), Model(name="gpt", runtime="mlx"), ctx=ctx))
    assert made.misfits == []
    assert made.objects == {ECHO: "echo", "acme/coder": "gpt"}
    assert made.aliases == {"main": ECHO, "helper": ECHO, "code": "acme/coder"}
    assert made.users == {1000: {"main": "acme/coder"}}


MODELS = """
active_model: "a:b"
models:
  "a:b": {runtime: echo}
  x.sock: {runtime: echo}
  one: {runtime: echo}
  two: {runtime: echo}
"""
CTX = """
ctx:
  enabled: ENABLED
  models:
    two: {object: debug/one}
    three: {session: socket}
    one: {driver: {default: [openai-chatt]}}
  aliases: {debug: one, "b/c": one, far: away}
"""


def test_what_doesnt_fit_is_shown_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(MODELS + CTX.replace("ENABLED", "true").replace("openai-chatt", "openai-chat"))
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    told = [(problem.line, problem.message) for problem in caught.value.problems]
    assert told == [
        (12, "two and one would both be debug/one in /ctx"),
        (13, "ctx.models: there is no model three"),
        (15, "the alias debug is a provider's folder in /ctx"),
        (15, "'b/c' can't be an alias of /ctx"),
        (15, "the alias far: there is no model away"),
    ]
    assert all(problem.cure for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("qwen2.5:32b", "qwen2.5-32b"),
        ("hf.co/bartowski/x:Q4", "hf.co-bartowski-x-Q4"),
        ("x.sock", "x-sock"),
        ("x.d", "x-d"),
        ("_x", "x"),
        ("ä", ""),
        ("a" * 70, "a" * 64),
    ],
)
def test_a_name_that_can_t_be_a_component_is_fitted(name: str, fits: str) -> None:
    assert fitted(name) == fits
    assert fits == "" or is_component(fits)


@given(st.text(max_size=80))
def test_any_name_is_fitted(name: str) -> None:
    assert fitted(name) == "" or is_component(fitted(name))


def test_no_model_s_name_makes_the_file_invalid() -> None:
    """Adding a model to a running gateway must not fail for its name."""
    models = [
        Model(name=name, runtime="mlx", path=Path("x")) for name in ("q:4", "q-4", "q/4", "ä", "ö", "x.d", "q:4b")
    ]
    made = projection(config(*models))
    assert made.misfits == []
    assert sorted(of for of in made.objects.values() if of is not None) == sorted(model.name for model in models)
    assert all(map(is_model_id, made.objects))


def test_names_matter_only_where_the_tree_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(MODELS)
    assert len(load(file, {}).models) == 4
    file.write_text(MODELS + CTX.replace("ENABLED", "false"))
    with pytest.raises(ConfigError, match=r"openai-chatt isn't allowed\n    did you mean \"openai-chat\"\?"):
        load(file, {})


def test_a_credential_comes_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "active_model: m\nmodels: {m: {runtime: openai, base_url: 'https://far.example'}}\n"
        "ctx: {models: {m: {credential: far-off}}}\n"
    )
    key = load(file, {"FAR_OFF_API_KEY": "s3cret"}).models["m"].api_key
    assert key is not None
    assert key.get_secret_value() == "s3cret"
    assert load(file, {}).models["m"].api_key is None
