"""The command that starts an engine, from a model and a machine. No I/O."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from gateway.backends.base import Address
from gateway.config import Adapter, Draft, Model, Prompts, Rope
from gateway.config.tuning import MLX_BITS
from gateway.engines import gpu_placement, reading_step
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.feature import offered

HOST = "127.0.0.1"

SLOT_TOKENS, MAX_SLOTS = 32768, 4
"""A model without `parallel` answers as many requests at once as have this much context together, up to a limit."""

SPECULATION = frozenset({"--spec-type", "--spec-default", "--spec-draft-model", "-md", "--model-draft"})
"""Options of llama.cpp that choose a kind of speculation."""

READING_STEP = frozenset({"--batch-size", "-b", "--ubatch-size", "-ub"})
"""Options of llama.cpp that say how many tokens of a prompt it reads at once."""

MIB = 1024 * 1024

KEY = "LLAMA_API_KEY"
"""The variable from which llama-server takes the key that requests must carry."""

NGRAM = "ngram-simple"
"""The kind of speculation of models without `draft`, and of `draft: {ngram: true}`: the fastest one where an answer
repeats its prompt, by `benchmarks/engine_defaults.py`."""
NGRAM_TOKENS, NGRAM_TOKENS_SHARED = 8, 24
"""Tokens to draft, after as many that came before; SHARED: where requests share the engine. On some processors a
step of few tokens costs nearly as much as the tokens one by one, so short drafts gain little even if they are right.
All answers of a shared engine wait for a draft, so it must be right more often, as it is after a longer match; see
`benchmarks/RESULTS.md`.

llama.cpp makes no draft that is shorter than the match."""

NGRAM_OPTIONS = (f"--spec-{NGRAM}-size-n", f"--spec-{NGRAM}-size-m")
"""An older llama-server doesn't know them, and would refuse to start."""

KV_GROUP = 32

SOUND = {"faster-whisper": "faster_whisper", "piper": "piper"}
"""Runtimes of the sound server, and the modules that they need."""

INSTALL_EMBEDDED = "pip install 'ctxgate[llama]'"
ANOTHER_BUILD = "install one that runs on this processor"
REPLACE_LLAMA_SERVER = "put a llama-server on the PATH that runs on this processor"

_HERE = Path(__file__).parent


class Machine(Struct, frozen=True):
    """What recipes need to know about a machine; see `gateway.engines.machine.this_machine`.

    cores: physical ones that engines may use. which: the path of a program, None where it isn't installed. has: whether
    Python can import a module. knows: whether a program's `--help` names an option; it may take a second. free_port: a
    TCP port that the system has just found free. unfit: paths of programs that SIGILL killed here, since they were
    built for another processor. gpus: the free bytes of each GPU of NVIDIA's that a llama.cpp program sees, by its own
    count, which may take seconds; None if it has the CPU alone. Of (), whether there can't be any GPU, at once.
    gpu_need: bytes of GPU memory that the engine will hold; 0: no GPU counts. prompts: folder of saved prompts; None:
    none are saved. saving: when, and how many.
    cache_ram: bytes in which an engine may keep prompts beside its slots; None: as many as it likes.
    seconds_per_token: how long the model's engine takes to read a prompt's token; None: unknown.
    """

    cores: int
    which: Callable[[str], str | None]
    has: Callable[[str], bool]
    free_port: Callable[[], int]
    knows: Callable[[str, str], bool] = lambda program, option: False
    gpus: Callable[[Sequence[str]], Sequence[int] | None] = lambda program: ()
    seconds_per_token: float | None = None
    gpu_need: int = 0
    python: str = sys.executable
    unfit: frozenset[str] = frozenset()
    prompts: Path | None = None
    saving: Prompts = Prompts()
    cache_ram: int | None = None
    host: str = HOST
    key: str | None = None


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
    """How to start `model`'s engine on `port`, or on a port of the system's choice. May ask a program what it knows.

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
    if model.runtime in SOUND:
        return _sound(model, machine, port)
    raise ProviderInvalidRequest(
        f"model {model.name!r}: an engine for runtime {model.runtime!r} can't be started here; it needs a base_url",
        param="runtime",
    )


def _llama_cpp(model: Model, machine: Machine, port: int | None) -> Recipe:
    options = _options(
        ("--model", model.path),
        ("--mmproj", model.mmproj_path),
        ("--alias", model.upstream_name),
        ("--host", machine.host),
        ("--threads", _threads(model, machine)),
        # llama.cpp divides its context by the slots. Slots that share one fail all together once it is full.
        ("--parallel", slots(model)),
        ("--ctx-size", model.context_window * slots(model) if model.context_window else None),
    )
    # A warm-up only reads the weights once before the first request, which does so itself.
    options += ["--no-warmup", *_tuned(model), *_for_role(model)]
    if _saves_slots(model, machine):
        # llama.cpp joins this and a file's name without a slash between.
        options += ["--slot-save-path", f"{machine.prompts}/"]
    program, embedded = machine.which("llama-server"), machine.has("xllamacpp")
    unfit = program in machine.unfit
    if program is not None and not (unfit and embedded):
        port = port or machine.free_port()
        if machine.knows(program, NGRAM_OPTIONS[0]):
            options += _ngram_by_default(model)
        options += [*_placed(model, machine, [program]), *_reading_step(model, machine, [program])]
        argv = [program, *options, "--port", str(port), "--jinja"]
        cure = "the embedded engine runs instead" if embedded else f"{INSTALL_EMBEDDED}, or {REPLACE_LLAMA_SERVER}"
        return _built(model, machine, "llama-server", argv, port, cure=cure)
    if embedded:
        start = [machine.python, "-P", str(_HERE / "xllamacpp_server.py")]
        options += [*_ngram_by_default(model), *_placed(model, machine, start), *_reading_step(model, machine, start)]
        argv = [*start, *options, "--port", str(port or 0)]
        note = f"the embedded engine runs instead of {program}, which was built for another processor (SIGILL)"
        return _built(model, machine, "xllamacpp", argv, port, cure=REPLACE_LLAMA_SERVER, note=note if unfit else None)
    raise ProviderUnavailable(
        f"model {model.name!r} needs an engine: {INSTALL_EMBEDDED}, or put llama-server on the PATH",
        code="engine_missing",
    )


def _placed(model: Model, machine: Machine, program: list[str]) -> list[str]:
    """The GPU of a model whose file doesn't choose one, where there are several."""
    if not machine.gpu_need or gpu_placement.decided(model):
        return []
    gpu = gpu_placement.whole(machine.gpu_need, machine.gpus(program) or ())
    return _options(*_on_one_gpu(gpu))


def _on_one_gpu(gpu: int | None) -> list[tuple[str, object]]:
    """By default llama.cpp divides a model among all GPUs, whatever `--main-gpu` says."""
    return [] if gpu is None else [("--split-mode", "none"), ("--main-gpu", gpu)]


def _reading_step(model: Model, machine: Machine, program: list[str]) -> list[str]:
    """For a chat model on a CPU, whose file leaves `batch` open. An image may have to fit into one step."""
    given = {arg.partition("=")[0] for arg in model.engine.args} & READING_STEP
    if model.role != "chat" or model.mmproj_path is not None or model.engine.batch is not None or given:
        return []
    if machine.gpu_need:
        return []
    if model.engine.gpu_layers != 0 and machine.gpus(()) is not None and machine.gpus(program) is not None:
        return []
    size = reading_step.usual(machine.seconds_per_token)
    return _options(("--batch-size", size), ("--ubatch-size", size))


def _saves_slots(model: Model, machine: Machine) -> bool:
    if model.role != "chat" or machine.prompts is None or "--slot-save-path" in model.engine.args:
        return False
    # llama.cpp doesn't record with which adapters a slot or a file was computed.
    return not _adapters_vary(model)


def _adapters_vary(model: Model) -> bool:
    """Whether requests choose adapters."""
    return any(adapter.alias is not None for adapter in model.engine.adapters)


def _tuned(model: Model) -> list[str]:
    """The settings of config.yaml as llama.cpp's options."""
    engine = model.engine
    rope, draft = engine.rope or Rope(), engine.draft or Draft()
    return _options(
        ("--gpu-layers", engine.gpu_layers),
        *_on_one_gpu(engine.main_gpu),
        ("--tensor-split", ",".join(f"{share:g}" for share in engine.tensor_split) if engine.tensor_split else None),
        ("--flash-attn", None if engine.flash_attention is None else "on" if engine.flash_attention else "off"),
        ("--cache-type-k", engine.kv_cache_type),
        ("--cache-type-v", engine.kv_cache_type),
        ("--batch-size", engine.batch),
        ("--ubatch-size", engine.batch),
        ("--load-mode", None if engine.mmap is None else "mmap" if engine.mmap else "none"),
        ("--numa", engine.numa),
        ("--rope-scaling", rope.scaling),
        ("--rope-scale", rope.factor),
        ("--rope-freq-base", rope.base),
        ("--yarn-orig-ctx", rope.original_context),
        ("--fit", None if engine.fit is None else "on" if engine.fit else "off"),
        ("--spec-draft-model", draft.model),
        ("--spec-draft-n-max", draft.tokens if draft.model is not None else None),
        ("--spec-draft-ngl", draft.gpu_layers),
        ("--spec-type", _speculation(model)),
        *(_ngram(model) if draft.ngram else ()),
        *map(_adapter, engine.adapters),
        # A prompt that was computed with one adapter must not be restored for another.
        ("--cache-ram", 0 if _adapters_vary(model) else None),
    )


def _ngram(model: Model) -> list[tuple[str, object]]:
    draft = model.engine.draft or Draft()
    if draft.tokens is not None:
        sizes = min(NGRAM_TOKENS, draft.tokens), draft.tokens
    else:
        sizes = (NGRAM_TOKENS if slots(model) == 1 else NGRAM_TOKENS_SHARED,) * 2
    return [*zip(NGRAM_OPTIONS, sizes, strict=True)]


def _ngram_by_default(model: Model) -> list[str]:
    """For a model whose file doesn't choose a kind of speculation."""
    draft = model.engine.draft or Draft()
    return _options(*_ngram(model)) if draft.ngram is None and speculates(model) else []


def _speculation(model: Model) -> str | None:
    if model.engine.draft is not None and model.engine.draft.model is not None:
        return "draft-simple"
    ngram = model.engine.draft.ngram if model.engine.draft is not None else None
    return None if ngram is None else NGRAM if ngram else "none"


def speculates(model: Model) -> bool:
    """Whether llama.cpp drafts the tokens that followed the same ones before. The model's own `args` come first."""
    draft = model.engine.draft
    if draft is not None and (draft.ngram is not None or draft.model is not None):
        return draft.ngram is True
    return model.role == "chat" and not {arg.partition("=")[0] for arg in model.engine.args} & SPECULATION


def _adapter(adapter: Adapter) -> tuple[str, str]:
    """An adapter that requests choose is loaded with the scale 0."""
    scale = adapter.scale if adapter.alias is None else 0.0
    name, value = ("--lora", f"{adapter.path}") if scale == 1 else ("--lora-scaled", f"{adapter.path}:{scale}")
    # llama.cpp splits at commas.
    return name, '"{}"'.format(value.replace('"', '""')) if set(value) & set(',"') else value


def _for_role(model: Model) -> list[str]:
    """llama.cpp reads what it embeds or ranks in one batch."""
    if model.role not in ("embedding", "rerank"):
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
        ("--host", machine.host),
        ("--port", port),
        ("--n_ctx", model.context_window),
        ("--n_threads", _threads(model, machine)),
        # Otherwise each new request cuts off the answer in flight.
        ("--interrupt_requests", "false"),
    )
    argv = [machine.python, "-P", "-m", "llama_cpp.server", *options]
    cure = "install it again with CMAKE_ARGS=-DGGML_NATIVE=OFF; see docs/engine-reference.md"
    return _built(model, machine, "llama_cpp.server", argv, port, cure=cure)


def _mlx(model: Model, machine: Machine, port: int | None) -> Recipe:
    _need(model, machine, "mlx_lm", "mlx")
    port = port or machine.free_port()
    window = model.context_window
    options = _options(
        ("--model", model.path),
        ("--host", machine.host),
        ("--port", port),
        ("--context-window", window),
        # Its own default cuts every answer at 512 tokens.
        ("--max-tokens", window or 32768),
        ("--decode-concurrency", model.engine.parallel),
        *_tuned_mlx(model),
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


def _sound(model: Model, machine: Machine, port: int | None) -> Recipe:
    _need(model, machine, SOUND[model.runtime], "audio")
    options = _options(
        ("--runtime", model.runtime),
        ("--model", model.path),
        ("--name", model.upstream_name),
        ("--host", machine.host),
        ("--port", port or 0),
        ("--threads", _threads(model, machine)),
    )
    argv = [machine.python, "-P", str(offered("sound_server")), *options]
    return _built(model, machine, model.runtime, argv, port)


def _tuned_mlx(model: Model) -> list[tuple[str, object]]:
    """The settings of config.yaml as mlx_lm.server's options."""
    engine = model.engine
    draft = engine.draft or Draft()
    return [
        ("--prefill-step-size", engine.batch),
        ("--kv-bits", MLX_BITS[engine.kv_cache_type] if engine.kv_cache_type is not None else None),
        # The same group size as in llama.cpp.
        ("--kv-group-size", KV_GROUP if engine.kv_cache_type is not None else None),
        ("--draft-model", draft.model),
        ("--num-draft-tokens", draft.tokens),
        *(("--adapter-path", adapter.path) for adapter in engine.adapters),
    ]


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
    address = _address(machine, port) if port else None
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
                f"model {model.name!r}: its engine's args must contain {{port}}, or the model must name its port",
                code="engine_misconfigured",
            )
    port = port or machine.free_port()
    argv = (program, *runtime.command[1:], *runtime.arguments(_values(model, machine, port)))
    timeout = runtime.startup_timeout_seconds
    return Recipe(name, argv, _address(machine, port), timeout, _environment(model, machine), runtime.pass_env)


def _address(machine: Machine, port: int) -> Address:
    return Address(machine.host, port)


def _environment(model: Model, machine: Machine) -> Mapping[str, str]:
    """Settings as variables, since an engine ignores those that its version doesn't know."""
    env = {"PYTHONUNBUFFERED": "1"}
    if machine.key is not None:
        # Others on the machine can read command lines.
        env[KEY if model.runtime != "llama-cpp-python" else "API_KEY"] = machine.key
    if model.runtime == "llama.cpp":
        # Only the gateway uses this server; web pages must not.
        env["LLAMA_ARG_CORS_ORIGINS"] = "localhost"
        # Pings show that the server lives, not that it works on the answer.
        env["LLAMA_ARG_SSE_PING_INTERVAL"] = "-1"
        if machine.cache_ram is not None:
            # Its own default is 8 GiB.
            env["LLAMA_ARG_CACHE_RAM"] = str(machine.cache_ram // MIB)
        if speculates(model) and (model.engine.draft is None or model.engine.draft.ngram is None):
            env["LLAMA_ARG_SPEC_TYPE"] = NGRAM
        # Keep the contents of idle slots, or there would be nothing to save.
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
        "host": machine.host,
        "port": port or 0,
        "context_window": model.context_window or 0,
        "threads": _threads(model, machine),
        "parallel": slots(model),
    }


def _threads(model: Model, machine: Machine) -> int:
    return model.engine.threads or machine.cores


def slots(model: Model) -> int:
    """How many requests the model's engine answers at once, each with its own context window."""
    if model.engine.parallel is not None:
        return model.engine.parallel
    return max(1, min(MAX_SLOTS, SLOT_TOKENS // model.context_window)) if model.context_window else 1


def cache_ram(model: Model) -> int | None:
    """The bytes that the model's own settings give to llama.cpp's cache beside the slots; None if they don't say."""
    if _adapters_vary(model):
        return 0
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
