"""Launch recipes: pure, so a table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway import engines
from gateway.backends import Address
from gateway.config import Adapter, Draft, Model, Prompts, Rope, Runtime
from gateway.engines import for_model
from gateway.engines.machine import physical_cores, quota, this_machine
from gateway.engines.recipe import Machine, cache_ram, recipe
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable

BARE = Machine(
    cores=8, which=lambda name: None, has=lambda module: False, free_port=lambda: 40001, python="/venv/python"
)
FULL = replace(BARE, which=lambda name: f"/bin/{name}", has=lambda module: True)
UNFIT = replace(FULL, unfit=frozenset({"/bin/llama-server"}))
WHEELS = replace(BARE, has=lambda module: True)
WEIGHTS = Path("/m/a.gguf")


def model(runtime: str = "llama.cpp", **more: Any) -> Model:
    return Model(**{"name": "a", "runtime": runtime, "path": WEIGHTS, "context_window": 4096, **more})


def options(argv: tuple[str, ...]) -> Mapping[str, str]:
    return {name: value for name, value in pairwise(argv) if name.startswith("--")}


CASES: dict[str, tuple[Model, Machine, int | None, str, Address | None, dict[str, str]]] = {
    "llama-server on the PATH comes first": (
        model(),
        FULL,
        None,
        "llama-server",
        Address("127.0.0.1", 40001),
        {
            "--model": "/m/a.gguf",
            "--ctx-size": "16384",
            "--parallel": "4",
            "--threads": "8",
            "--port": "40001",
            "--alias": "a",
        },
    ),
    "the port of the ADR": (model(), FULL, 8080, "llama-server", Address("127.0.0.1", 8080), {"--port": "8080"}),
    "slots of llama-server get a whole window each": (
        model(engine=Runtime(parallel=3)),
        FULL,
        None,
        "llama-server",
        Address("127.0.0.1", 40001),
        {"--ctx-size": "12288", "--parallel": "3"},
    ),
    "the wheel announces its port": (
        model(),
        WHEELS,
        None,
        "xllamacpp",
        None,
        {"--port": "0", "--ctx-size": "16384", "--parallel": "4", "--threads": "8"},
    ),
    "a large window is one request's at a time": (
        model(context_window=32768),
        WHEELS,
        None,
        "xllamacpp",
        None,
        {"--ctx-size": "32768", "--parallel": "1"},
    ),
    "the wheel on a given port": (model(), WHEELS, 8080, "xllamacpp", Address("127.0.0.1", 8080), {"--port": "8080"}),
    "the wheel where SIGILL kills llama-server": (model(), UNFIT, None, "xllamacpp", None, {"--port": "0"}),
    "llama-server all the same where there is no wheel": (
        model(),
        replace(UNFIT, has=lambda module: False),
        1,
        "llama-server",
        Address(port=1),
        {"--model": "/m/a.gguf"},
    ),
    "another llama-server, put on the PATH since": (
        model(),
        replace(UNFIT, which=lambda name: f"/opt/{name}"),
        1,
        "llama-server",
        Address(port=1),
        {"--model": "/m/a.gguf"},
    ),
    "threads as configured": (
        model(engine=Runtime(threads=2)),
        FULL,
        1,
        "llama-server",
        Address(port=1),
        {"--threads": "2"},
    ),
    "settings of llama.cpp": (
        model(
            engine=Runtime(
                gpu_layers=0,
                flash_attention=True,
                kv_cache_type="q8_0",
                batch=64,
                mmap=False,
                numa="distribute",
                rope=Rope(scaling="yarn", factor=2.0, base=10000.0, original_context=4096),
                draft=Draft(model=Path("/m/small.gguf"), tokens=4, gpu_layers=0),
                adapters=(Adapter(path=Path("/m/a.gguf")),),
                fit=False,
            )
        ),
        FULL,
        1,
        "llama-server",
        Address(port=1),
        {
            "--gpu-layers": "0",
            "--flash-attn": "on",
            "--cache-type-k": "q8_0",
            "--cache-type-v": "q8_0",
            "--batch-size": "64",
            "--ubatch-size": "64",
            "--load-mode": "none",
            "--numa": "distribute",
            "--rope-scaling": "yarn",
            "--rope-scale": "2.0",
            "--rope-freq-base": "10000.0",
            "--yarn-orig-ctx": "4096",
            "--spec-draft-model": "/m/small.gguf",
            "--spec-draft-n-max": "4",
            "--spec-draft-ngl": "0",
            "--spec-type": "draft-simple",
            "--lora": "/m/a.gguf",
            "--fit": "off",
        },
    ),
    "n-grams": (
        model(engine=Runtime(draft=Draft(ngram=True, tokens=16), fit=True)),
        FULL,
        1,
        "llama-server",
        Address(port=1),
        {
            "--spec-type": "ngram-simple",
            "--spec-ngram-simple-size-n": "8",
            "--spec-ngram-simple-size-m": "16",
            "--fit": "on",
        },
    ),
    "few n-grams": (
        model(engine=Runtime(draft=Draft(ngram=True, tokens=4))),
        FULL,
        1,
        "llama-server",
        Address(port=1),
        # A proposal of fewer tokens than must come before is never made.
        {"--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": "4", "--spec-ngram-simple-size-m": "4"},
    ),
    "no speculation": (
        model(engine=Runtime(draft=Draft(ngram=False))),
        FULL,
        1,
        "llama-server",
        Address(port=1),
        {"--spec-type": "none"},
    ),
    "an adapter with a weight": (
        model(engine=Runtime(adapters=(Adapter(path=Path('/m/a,"b.gguf'), scale=0.5),))),
        FULL,
        1,
        "llama-server",
        Address(port=1),
        {"--lora-scaled": '"/m/a,""b.gguf:0.5"'},
    ),
    "adapters that requests choose weigh nothing by themselves, and share no cache": (
        model(engine=Runtime(adapters=(Adapter(path=Path("/m/a.gguf"), alias="b"),))),
        replace(FULL, prompts=Path("/p")),
        1,
        "llama-server",
        Address(port=1),
        {"--lora-scaled": "/m/a.gguf:0.0", "--cache-ram": "0"},
    ),
    "settings of mlx": (
        model(
            "mlx",
            engine=Runtime(
                kv_cache_type="q8_0",
                batch=64,
                draft=Draft(model=Path("/m/small"), tokens=2),
                adapters=(Adapter(path=Path("/m/adapter")),),
            ),
        ),
        WHEELS,
        1,
        "mlx_lm.server",
        Address(port=1),
        {
            "--kv-bits": "8",
            "--kv-group-size": "32",
            "--prefill-step-size": "64",
            "--draft-model": "/m/small",
            "--num-draft-tokens": "2",
            "--adapter-path": "/m/adapter",
        },
    ),
    "one core": (model(), replace(FULL, cores=1), 1, "llama-server", Address(port=1), {"--threads": "1"}),
    "llama-cpp-python lets answers in flight end": (
        model("llama-cpp-python"),
        WHEELS,
        None,
        "llama_cpp.server",
        Address("127.0.0.1", 40001),
        {"--interrupt_requests": "false", "--n_ctx": "4096", "--n_threads": "8", "--model_alias": "a"},
    ),
    "mlx is told the window, and answers beyond 512 tokens": (
        model("mlx"),
        WHEELS,
        None,
        "mlx_lm.server",
        Address("127.0.0.1", 40001),
        {"--context-window": "4096", "--max-tokens": "4096"},
    ),
    "args are added to the recipe": (
        model(engine=Runtime(args=("--flash-attn", "on", "--slot-save-path", "/s/{port}"))),
        FULL,
        9,
        "llama-server",
        Address(port=9),
        {"--flash-attn": "on", "--slot-save-path": "/s/9", "--model": "/m/a.gguf"},
    ),
    "command and args are the whole command line": (
        model(engine=Runtime(command=("my-server", "serve"), args=("--weights", "{model_path}", "--port", "{port}"))),
        FULL,
        None,
        "my-server",
        Address("127.0.0.1", 40001),
        {"--weights": "/m/a.gguf", "--port": "40001"},
    ),
    "a port written into the args": (
        model(engine=Runtime(command=("llama-server",), args=("--model", "{model_path}", "--port", "8080"))),
        FULL,
        None,
        "llama-server",
        Address("127.0.0.1", 8080),
        {"--port": "8080"},
    ),
    "any server that speaks OpenAI, by its command": (
        model("openai", engine=Runtime(command=("vllm", "serve"), args=("{model_path}", "--port", "{port}"))),
        FULL,
        None,
        "vllm",
        Address("127.0.0.1", 40001),
        {"--port": "40001"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_recipe(case: tuple[Model, Machine, int | None, str, Address | None, dict[str, str]]) -> None:
    of, machine, port, engine, address, expected = case
    made = recipe(of, machine, port)
    assert made.engine == engine
    assert made.address == address
    assert options(made.argv).items() >= expected.items()


SAVING = Prompts(save="each_turn", min_tokens=256, max_bytes=10**9, max_age_days=3)
COMMANDS: dict[str, tuple[Model, Machine, str, dict[str, str]]] = {
    "llama-server": (
        model(mmproj_path=Path("/m/p.gguf"), model_name="up"),
        replace(FULL, prompts=Path("/saved"), saving=SAVING, cache_ram=7 * 2**20),
        "/bin/llama-server --model /m/a.gguf --mmproj /m/p.gguf --alias up --host 127.0.0.1 --threads 8 --parallel 4"
        " --ctx-size 16384 --no-warmup --slot-save-path /saved/ --port 40001 --jinja",
        {
            "PYTHONUNBUFFERED": "1",
            "LLAMA_ARG_CORS_ORIGINS": "localhost",
            "LLAMA_ARG_SSE_PING_INTERVAL": "-1",
            "LLAMA_ARG_CACHE_RAM": "7",
            "LLAMA_ARG_SPEC_TYPE": "ngram-simple",
            "LLAMA_ARG_CACHE_IDLE_SLOTS": "0",
        },
    ),
    "one that embeds": (
        model(role="embedding", context_window=512),
        replace(FULL, prompts=Path("/saved")),
        "/bin/llama-server --model /m/a.gguf --alias a --host 127.0.0.1 --threads 8 --parallel 4 --ctx-size 2048"
        " --no-warmup --embeddings --batch-size 512 --ubatch-size 512 --port 40001 --jinja",
        {
            "PYTHONUNBUFFERED": "1",
            "LLAMA_ARG_CORS_ORIGINS": "localhost",
            "LLAMA_ARG_SSE_PING_INTERVAL": "-1",
            "LLAMA_ARG_CACHE_IDLE_SLOTS": "0",
        },
    ),
    "llama-cpp-python": (
        model("llama-cpp-python"),
        WHEELS,
        "/venv/python -P -m llama_cpp.server --model /m/a.gguf --model_alias a --host 127.0.0.1 --port 40001"
        " --n_ctx 4096 --n_threads 8 --interrupt_requests false",
        {"PYTHONUNBUFFERED": "1"},
    ),
    "mlx": (
        model("mlx", context_window=None, engine=Runtime(parallel=2)),
        replace(WHEELS, prompts=Path("/saved"), saving=SAVING),
        f"/venv/python -P {Path(engines.__file__).with_name('mlx_server.py')} --model /m/a.gguf --host 127.0.0.1"
        " --port 40001 --max-tokens 32768 --decode-concurrency 2 --log-level WARNING"
        " --allowed-origins http://localhost --prompt-folder /saved --prompt-save each_turn --prompt-model a"
        " --prompt-min-tokens 256 --prompt-max-bytes 1000000000 --prompt-max-age-days 3",
        {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_whole_command(name: str) -> None:
    of, machine, command, environment = COMMANDS[name]
    made = recipe(of, machine, None)
    assert " ".join(made.argv) == command
    assert made.env == environment
    assert (made.ready_timeout, made.pass_env) == (of.engine.startup_timeout_seconds, ())


@pytest.mark.parametrize(
    ("window", "slots"), [(None, 1), (100_000, 1), (32_768, 1), (16_384, 2), (10_000, 3), (8192, 4), (512, 4)]
)
def test_small_windows_answer_more_requests_at_once(window: int | None, slots: int) -> None:
    assert options(recipe(model(context_window=window), FULL, 1).argv)["--parallel"] == str(slots)


@pytest.mark.parametrize(
    ("args", "bytes"),
    [((), None), (("--cache-ram", "9"), 9 * 2**20), (("-cram=9",), 9 * 2**20), (("--my-cache-ram", "9"), None)],
)
def test_the_cache_that_args_name(args: tuple[str, ...], bytes: int | None) -> None:
    assert cache_ram(model(engine=Runtime(args=args))) == bytes


@pytest.mark.parametrize(
    ("args", "given", "port"),
    [
        (("--port", "8080"), None, 8080),
        (("--port=8080",), 9, 8080),
        (("--port", "{port}"), 9, 9),
        (("--port", "{port}"), None, 40001),
        (("--report", "80"), 9, 9),
        (("--port", "80x"), 9, 9),
    ],
)
def test_where_a_command_listens(args: tuple[str, ...], given: int | None, port: int) -> None:
    made = recipe(model(engine=Runtime(command=("x",), args=args)), FULL, given)
    assert made.address == Address("127.0.0.1", port)


def test_no_option_without_a_value() -> None:
    made = recipe(model(context_window=None), FULL, 1)
    assert not {"--ctx-size", "--mmproj"} & set(made.argv)
    assert "None" not in " ".join(made.argv)


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (model(), "ngram-simple"),
        (model(engine=Runtime(draft=Draft(tokens=8))), "ngram-simple"),
        (model(role="embedding"), None),
        # Where the file says it, an option does.
        (model(engine=Runtime(draft=Draft(ngram=False))), None),
        (model(engine=Runtime(draft=Draft(model=Path("/m/small.gguf")))), None),
        (model(engine=Runtime(args=("--spec-type", "none"))), None),
        (model(engine=Runtime(args=("--spec-type=ngram-mod",))), None),
    ],
)
def test_llama_cpp_speculates_by_default(of: Model, kind: str | None) -> None:
    """By a variable: a llama-server that is too old for it ignores that."""
    assert recipe(of, FULL, 1).env.get("LLAMA_ARG_SPEC_TYPE") == kind


SIZES = {"--spec-ngram-simple-size-n": "8", "--spec-ngram-simple-size-m": "8"}
SHARED = dict.fromkeys(SIZES, "24")


@pytest.mark.parametrize(
    ("engine", "machine", "sizes"),
    [
        (Runtime(parallel=1), WHEELS, SIZES),
        # A draft holds up the other answers, so it must be right more often.
        (Runtime(), WHEELS, SHARED),
        (Runtime(parallel=2), WHEELS, SHARED),
        (Runtime(parallel=2, draft=Draft(ngram=True)), WHEELS, SHARED),
        (Runtime(parallel=2, draft=Draft(ngram=True, tokens=8)), WHEELS, SIZES),
        (Runtime(), replace(FULL, knows=lambda program, option: option in SIZES), SHARED),
        # It may be too old.
        (Runtime(), FULL, {}),
        (Runtime(draft=Draft(tokens=2)), WHEELS, dict.fromkeys(SIZES, "2")),
        (Runtime(draft=Draft(ngram=False)), WHEELS, {}),
        (Runtime(args=("--spec-type", "none")), WHEELS, {}),
    ],
)
def test_how_much_llama_cpp_proposes_by_default(engine: Runtime, machine: Machine, sizes: Mapping[str, str]) -> None:
    given = options(recipe(model(engine=engine), machine, 1).argv)
    assert {name: value for name, value in given.items() if name in SIZES} == sizes


def test_a_program_knows_the_options_of_its_help(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho '-c, --ctx-size N  context, see --no-such-thing-here'\n")
    program.chmod(0o755)
    knows = this_machine().knows
    assert knows(str(program), "--ctx-size")
    assert not knows(str(program), "--ctx")
    assert not knows(str(tmp_path / "gone"), "--ctx-size")


def test_two_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    for processor in range(4):
        (tmp_path / f"cpu{processor}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{processor}/topology/thread_siblings_list").write_text(f"{processor % 2},{processor % 2 + 2}")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({0, 8, 9}, tmp_path) == 3  # the system says nothing of two of them


@pytest.mark.parametrize(
    ("written", "processors"),
    [("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000\n", 2), ("10000 100000\n", 1)],
)
def test_a_control_group_bounds_the_cores(tmp_path: Path, written: str, processors: int | None) -> None:
    (tmp_path / "cpu.max").write_text(written)
    assert quota(tmp_path) == processors
    assert quota(tmp_path / "none") is None


REFUSED: dict[str, tuple[Model, Machine, type[Exception], str]] = {
    "no llama.cpp": (
        model(),
        BARE,
        ProviderUnavailable,
        "pip install 'ctxgate[llama]', or put llama-server on the PATH",
    ),
    "no llama-cpp-python": (
        model("llama-cpp-python"),
        BARE,
        ProviderUnavailable,
        "pip install 'ctxgate[llama-cpp-python]'",
    ),
    "no mlx": (model("mlx"), BARE, ProviderUnavailable, "pip install 'ctxgate[mlx]'"),
    "no such command": (
        model(engine=Runtime(command=("nope",))),
        BARE,
        ProviderUnavailable,
        "'nope' is not on the PATH",
    ),
    "no port to be had": (model(engine=Runtime(command=("x",))), FULL, ProviderUnavailable, "{port}"),
    "not ours to start": (model("openai"), FULL, ProviderInvalidRequest, "base_url"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused(case: tuple[Model, Machine, type[Exception], str]) -> None:
    of, machine, error, words = case
    with pytest.raises(error) as caught:
        recipe(of, machine, None)
    assert words in str(caught.value)


STARTED: dict[str, tuple[Model, bool]] = {
    "weights and no address": (model(), True),
    "weights and the ADR's port": (model(port=8080, base_url="http://127.0.0.1:8080"), True),
    "weights, but the server is elsewhere": (model(base_url="http://10.0.0.9:8080"), False),
    "weights behind a socket of somebody's": (model(uds=Path("/run/x.sock")), False),
    "no weights": (model(path=None, base_url="http://127.0.0.1:8080"), False),
    "ollama keeps its own": (model("ollama", engine=Runtime(command=("ollama", "serve"))), False),
    "openai": (model("openai", base_url="http://127.0.0.1:1"), False),
    "echo": (model("echo"), False),
    "mlx": (model("mlx"), True),
}


@pytest.mark.parametrize(("of", "started"), STARTED.values(), ids=STARTED)
def test_which_models_have_an_engine(of: Model, started: bool) -> None:
    assert (for_model(of) is not None) is started


def test_prompts_that_adapters_shape_are_not_saved() -> None:
    """llama.cpp doesn't note in a slot's file which adapters were chosen."""
    machine = replace(FULL, prompts=Path("/p"))
    fixed, chosen = (model(engine=Runtime(adapters=(Adapter(path=Path("/a"), alias=alias),))) for alias in (None, "b"))
    assert "--slot-save-path" in recipe(fixed, machine, 1).argv
    assert "--slot-save-path" not in recipe(chosen, machine, 1).argv
    assert (cache_ram(fixed), cache_ram(chosen)) == (None, 0)


@pytest.mark.parametrize(
    ("printed", "status"), [(r"\377 --ctx-size", 0), ("", 0), ("--other", 0)], ids=["no text", "nothing", "another"]
)
def test_a_program_without_readable_help_knows_no_option(tmp_path: Path, printed: str, status: int) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\nprintf '{printed}'\nexit {status}\n")
    program.chmod(0o755)
    assert not this_machine().knows(str(program), "--ctx-size")


@pytest.mark.parametrize(("physical", "logical", "cores"), [(3, 8, 3), (None, 8, 8), (None, None, 1)])
def test_cores_where_the_system_says_nothing_of_affinity(
    physical: int | None, logical: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    import psutil

    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: logical)
    monkeypatch.setattr(psutil, "cpu_count", lambda *, logical: 99 if logical else physical)
    assert this_machine().cores == cores


def test_a_program_that_is_on_the_path_is_found_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "bin")
    assert this_machine().which("llama-server") == str(program)
    assert this_machine().which("no-such-program") is None
