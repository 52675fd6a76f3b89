"""llama-server's command line, as the embedded engine takes it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.engines.xllamacpp_options import LEFT_OUT, TABLE, Option, OptionError, apply
from tests.conftest import found_llama_server
from tests.llama_server import CURE, EMBEDDED, built, pinned
from tests.ports import free_port

xllamacpp = pytest.importorskip("xllamacpp")

NAMES = Path(__file__).with_name("llama_server_options.txt")
"""The names of the pinned llama-server's options; test_the_names_are_the_pinned_llama_server_s says where from."""

PATIENCE = 60.0


def listed() -> list[frozenset[str]]:
    return [frozenset(line.split()) for line in NAMES.read_text("utf-8").splitlines() if not line.startswith("#")]


def params(*argv: str) -> Any:
    made = xllamacpp.CommonParams()
    apply(made, argv)
    return made


def fields(value: Any) -> Any:
    """All that can be read of xllamacpp's parameters."""
    if type(value).__module__ != "xllamacpp.xllamacpp" or hasattr(value, "name"):
        return [fields(item) for item in value] if isinstance(value, list) else value
    if isinstance(value, (xllamacpp.CommonGrammar, xllamacpp.CommonAdapterLoraInfo)):
        return repr(value)
    names = [name for name in dir(value) if not name.startswith("_")]
    return {name: fields(getattr(value, name)) for name in names if not callable(getattr(value, name))}


def get(made: Any, path: str) -> Any:
    for name in path.split("."):
        made = getattr(made, name)
    return made


# The table


def test_every_option_is_taken_or_left_out_with_a_reason() -> None:
    taken = [frozenset(option.names + option.off) for option in TABLE]
    left_out = [frozenset(names.split()) for names in LEFT_OUT]
    assert sorted(map(sorted, taken + left_out)) == sorted(map(sorted, listed()))
    assert (len(taken), len(left_out)) == (197, 59), "docs/engine-reference.md has the counts"
    assert all(LEFT_OUT.values())


def test_the_names_are_the_pinned_llama_server_s() -> None:
    build, *_ = re.findall(r"b\d+", NAMES.read_text("utf-8").splitlines()[0])
    assert build == pinned()
    if not built().exists():
        pytest.skip(f"llama-server {pinned()} isn't built, so only the list in the repository was read; {CURE}")
    done = subprocess.run([str(built()), "--help"], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert helped(done.stdout) == listed()


def helped(text: str) -> list[frozenset[str]]:
    """The names that `--help` lists: before each description, which two spaces or a new line separate from them."""
    heads = [
        re.split(r"(?<=\S)\s{2,}(?=[^-\s])", line)[0] for line in text.splitlines() if re.match("--?[a-z]", line, re.I)
    ]
    return [frozenset(re.findall(r"(?:^|,\s+)(--?[A-Za-z][\w.-]*)", head)) for head in heads]


SAMPLES = {
    "-C": "3",
    "-Cb": "3",
    "-Cr": "0-1",
    "-Crb": "0-1",
    "--spec-draft-cpu-mask": "3",
    "--spec-draft-cpu-range": "0-1",
    "--spec-draft-cpu-mask-batch": "3",
    "--cpu-strict": "1",
    "--cpu-strict-batch": "1",
    "--spec-draft-cpu-strict": "1",
    "--spec-draft-cpu-strict-batch": "1",
    "-ctk": "q8_0",
    "-ctv": "iq4_nl",
    "--spec-draft-type-k": "bf16",
    "--spec-draft-type-v": "q5_1",
    "-fa": "on",
    "-fit": "off",
    "-lm": "mmap+mlock",
    "-lzm": "off",
    "--numa": "isolate",
    "-ot": "blk=CPU",
    "--spec-draft-override-tensor": "blk=CPU",
    "-sm": "row",
    "-ts": "3,1",
    "--rope-scaling": "yarn",
    "--samplers": "top_k;temperature",
    "--sampler-seq": "kt",
    "--grammar": 'root ::= "a"',
    "-j": '{"type": "object"}',
    "--spec-draft-sampling": "probabilistic",
    "--spec-type": "ngram-mod",
    "--spec-draft-device": "none",
    "--pooling": "mean",
    "-mmdev": "none",
    "--chat-template-kwargs": '{"a": 1}',
    "--reasoning-format": "none",
    "-rea": "off",
    "--lora-scaled": "a.gguf:0.5",
    "--dry-allowed-length": "3",
    "--embd-normalize": "3",
}
"""Values for options that don't take 2."""

UNSEEN = {"-dt": "llama-server ignores it too", "--spec-draft-device": "xllamacpp shows devices, and here is none"}


OWN_THREADS = ("-t", "1", "-tb", "1", "-td", "1", "-tbd", "1")
"""Otherwise llama.cpp takes all that it has for one kind of threads from another kind."""


def argv_for(option: Option, folder: Path) -> list[str]:
    first = option.names[0]
    if not option.values:
        return [first]
    file = folder / "content"
    if first == "--api-key-file":
        file.write_text("# keys\nsecret\n", "utf-8")
    elif first in {"--grammar-file", "--chat-template-file"}:
        file.write_text('root ::= "a"', "utf-8")
    elif first == "-jf":
        file.write_text('{"type": "object"}', "utf-8")
    elif first in {"--slot-save-path", "--media-path", "--log-prompts-dir"}:
        return [first, str(folder)]
    return [first, str(file) if file.exists() else SAMPLES.get(first, "2")]


@pytest.mark.parametrize(
    "option", [option for option in TABLE if "-h" not in option.names], ids=lambda option: option.names[0]
)
def test_each_option_changes_the_parameters(option: Option, tmp_path: Path) -> None:
    """Under each of its names alike, and its opposite in another way."""
    argv = argv_for(option, tmp_path)
    made = [fields(params(*OWN_THREADS, name, *argv[1:])) for name in option.names]
    assert all(one == made[0] for one in made)
    others = [[name] for name in option.off] or [[]]
    opposites = [fields(params(*OWN_THREADS, *other)) for other in others]
    assert all(one == opposites[0] for one in opposites)
    assert (made[0] != opposites[0]) is (option.names[0] not in UNSEEN)


def test_help_lists_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        params("--help")
    assert not ended.value.code
    assert helped(capsys.readouterr().out) == [frozenset(option.names + option.off) for option in TABLE]


# Values

NO_THINKING = {"enable_thinking": "false"}
WRITES: list[tuple[str, str, Any]] = [
    ("-c 4096", "n_ctx", 4096),
    ("-c 0", "fit_params_min_ctx", -1),
    ("--ctx_size=512", "n_ctx", 512),
    ("--threads 3", "cpuparams_batch.n_threads", 3),
    ("--threads 3 -tb 2", "speculative.draft.cpuparams_batch.n_threads", 2),
    ("--threads 3 --prio 2 --poll 0", "speculative.draft.cpuparams.priority.value", 2),
    ("-ngl all", "n_gpu_layers", -2),
    ("-ngl auto", "n_gpu_layers", -1),
    ("-fa on", "flash_attn_type.name", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
    ("-fa 0", "flash_attn_type.name", "LLAMA_FLASH_ATTN_TYPE_DISABLED"),
    ("-ctk q8_0", "cache_type_k.name", "GGML_TYPE_Q8_0"),
    ("-lm dio", "load_mode.name", "LLAMA_LOAD_MODE_DIRECT_IO"),
    ("-lm mmap+mlock", "load_mode.name", "LLAMA_LOAD_MODE_MMAP_MLOCK"),
    ("--numa distribute", "numa.name", "GGML_NUMA_STRATEGY_DISTRIBUTE"),
    ("--rope-scale 4", "rope_freq_scale", 0.25),
    ("--no-kv-offload", "no_kv_offload", True),
    ("--no-repack --repack", "no_extra_bufts", False),
    ("--no-perf", "sampling.no_perf", True),
    ("-ot a=CPU -ncmoe 1", "tensor_buft_overrides", r"a=CPU,blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"),
    ("--n-cpu-ffn 1", "tensor_buft_overrides", r"blk\.0\.ffn_(up|down|gate)\.=CPU"),
    ("-seed 1", "", OptionError),
    ("-s -1", "sampling.seed", 2**32 - 1),
    ("--top-k 7 --temp -1", "sampling.user_sampling_config", 2 + 64),
    ("--temp -1", "sampling.temp", 0.0),
    ("--repeat-last-n 128", "sampling.n_prev", 128),
    ("--dry-base 0.5", "sampling.dry_base", 1.75),
    ("--sampler-seq kt", "sampling.samplers", "top_k;temperature"),
    ("--spec-type ngram-mod --spec-ngram-mod-n-match 8", "speculative.ngram_mod.n_match", 8),
    ("--spec-draft-model a.gguf", "speculative.draft.mparams.path", "a.gguf"),
    ("--mmproj-device no-such-device", "", OptionError),
    ("--mmproj-device none", "mmproj_use_gpu", False),
    ("--alias a,b --alias c", "model_alias", {"a", "b", "c"}),
    ('--host a,"b,c"', "hostnames", ["a", "b,c"]),
    ("--api-key a,,b --api-key c", "api_keys", ["a", "b", "c"]),
    ("-r a\\n\\x41\\\\", "antiprompt", ["a\nA\\"]),
    ("-r a\\n --no-escape", "antiprompt", ["a\\n"]),
    ("--reasoning off", "default_template_kwargs", NO_THINKING),
    ("--reasoning-effort high", "default_template_kwargs", {"reasoning_effort": '"high"'}),
    ("--reasoning-effort high --reasoning off --reasoning-effort default", "default_template_kwargs", NO_THINKING),
    ("--reasoning auto", "default_template_kwargs", {}),
    ("--spec-synth-len 2.5", "speculative.synth_len", 2.5),
    ("--spec-draft-sampling greedy", "speculative.draft.probabilistic", False),
    ("--spec-draft-sampling probabilistic", "speculative.draft.probabilistic", True),
    ("--spec-default", "speculative.ngram_mod.n_min", 48),
    ("--spec-default", "speculative.ngram_mod.n_max", 64),
    ("--spec-default", "speculative.ngram_mod.n_match", 24),
    ("--cpu-range -3 --cpu-mask 0x10", "cpuparams.cpumask", [True] * 5 + [False] * 507),
    ("--cpu-range 510-", "cpuparams.cpumask", [False] * 510 + [True] * 2),
    ("--cpu-mask 0x", "cpuparams.cpumask", [False] * 512),
    ("--rerank", "pooling_type.name", "LLAMA_POOLING_TYPE_RANK"),
    ("--kv-unified-per-slot 512 -np 3", "n_ctx", 1536),
    ("--kv-unified-per-slot 512 -np -1", "n_ctx", 2048),
    ("--kv-unified-per-slot 512 -c 0", "n_ctx", 0),
    ("-v", "verbosity", 2**31 - 1),
]


@pytest.mark.parametrize(("line", "path", "value"), WRITES, ids=[line for line, *_ in WRITES])
def test_what_an_option_writes(line: str, path: str, value: Any) -> None:
    if value is OptionError:
        with pytest.raises(OptionError):
            params(*line.split())
        return
    assert get(params(*line.split()), path) == value


def test_lists() -> None:
    made = params(
        "--lora", "a,b", "--lora-scaled", "c:0.5,d:2", "-ts", "3,1/2", "-fitt", "512", "-C", "0x5", "-Cr", "4-5"
    )
    assert [(one.path, one.scale) for one in made.lora_adapters] == [("a", 1), ("b", 1), ("c", 0.5), ("d", 2)]
    assert made.tensor_split[:4] == [3, 1, 2, 0]
    assert set(made.fit_params_target) == {512 * 1024 * 1024}
    assert [place for place, on in enumerate(made.cpuparams.cpumask) if on] == [0, 2, 4, 5]
    assert made.cpuparams.mask_valid
    kinds = params("--spec-type", "ngram-mod,ngram-cache", "--spec-default").speculative.types
    assert [kind.name.rsplit("TYPE_")[-1] for kind in kinds] == ["NONE", "NGRAM_MOD", "NGRAM_CACHE", "NGRAM_MOD"]


REFUSED = [
    ("--flash-atn on", "unknown option --flash-atn; did you mean --flash-attn?"),
    ("--no-mmap", "unknown option --no-mmap"),
    ("tiny", "unknown option tiny"),
    ("--threads", "--threads: a value must follow"),
    ("--warmup=1", "--warmup: takes no value"),
    ("--threads 2x", "--threads 2x: must be a whole number"),
    ("-c 4294967296", "-c 4294967296: must be at most 2147483647"),
    ("-c -2147483649", "-c -2147483649: must be at least -2147483648"),
    ("--top-p high", "--top-p high: must be a number"),
    ("--repeat-penalty 0", "--repeat-penalty 0: must be above 0"),
    ("--presence-penalty nan", "--presence-penalty nan: must be finite"),
    ("--repeat-last-n -1", "--repeat-last-n -1: must be at least 0"),
    ("--spec-ngram-mod-n-match 0", "--spec-ngram-mod-n-match 0: must be at least 1"),
    ("-ctk q3_k", "-ctk q3_k: must be one of f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1"),
    ("-fa maybe", "-fa maybe: must be on, off or auto"),
    ("--fit auto", "--fit auto: must be on or off"),
    ("-np 0", "-np 0: must not be 0"),
    ("-ncmoe 10001", "-ncmoe 10001: must be at most 10000"),
    ("--prio-batch -1", "--prio-batch -1: must be at least 0"),
    ("--sleep-idle-seconds 0", "--sleep-idle-seconds 0: must not be 0"),
    ("--spec-type fast", "--spec-type fast: 'fast' is not one of: none, draft-simple"),
    ("-ot blk=GPU9", "-ot blk=GPU9: unknown buffer type"),
    ("--cpu-range 0-512", "--cpu-range 0-512: must be below 512"),
    ("--cpu-range 512-0", "--cpu-range 512-0: must be below 512"),
    ("--cpu-range 5", "--cpu-range 5: must be FIRST-LAST"),
    ("--cpu-mask 0xg", "--cpu-mask 0xg: must be a hexadecimal number"),
    (f"-ts {','.join('1' * 999)}", f"-ts {','.join('1' * 999)}: must be fewer than "),
    (f"-fitt {','.join('1' * 999)}", f"-fitt {','.join('1' * 999)}: must be at most "),
    ("--sampler-seq kq", "--sampler-seq kq: 'q' is not a sampler's letter"),
    ("--rope-scale 0", "--rope-scale 0: must not be 0"),
    ("--spec-synth-len -1", "--spec-synth-len -1: must not be -1"),
    ("--spec-draft-sampling best", "--spec-draft-sampling best: must be one of greedy, probabilistic"),
    ("--host ,", "--host ,: must be at least one address"),
    ("--lora-scaled a", "--lora-scaled a: must be FILE:SCALE"),
    ("--chat-template-kwargs [1]", "--chat-template-kwargs [1]: must be a JSON object"),
    ("--slot-save-path nowhere", "--slot-save-path nowhere: is not a folder"),
    ("--grammar-file nowhere", "--grammar-file nowhere: [Errno 2]"),
    ("--hf-repo a/b", "--hf-repo: downloads; the embedded engine opens files that are there"),
    ("--tools all", "--tools: runs tools within the server"),
    ("--draft-max 8", "--draft-max: llama-server has removed it; use --spec-draft-n-max or --spec-ngram-mod-n-max"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_is_refused(line: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        params(*line.split())
    assert str(caught.value).startswith(message)


# Served

LINE = shlex.split(
    "--ctx-size 1024 --parallel 2 --threads 1 -fa on -ctk q8_0 -ctv q8_0 --cpu-moe --no-warmup --cpu-range 0-1 --poll 0"
    " --temp 0.3 --top-k 7 --top-p 0.5 --min-p 0.2 --xtc-probability 0.1 --xtc-threshold 0.3 --typical 0.9"
    " --repeat-last-n 32 --repeat-penalty 1.1 --presence-penalty 0.1 --frequency-penalty 0.2 --dry-multiplier 0.4"
    " --dry-base 1.5 --dry-allowed-length 3 --dry-penalty-last-n 20 --dynatemp-range 0.1 --dynatemp-exp 1.2"
    " --mirostat 1 --mirostat-lr 0.2 --mirostat-ent 4 --adaptive-target 0.5 --adaptive-decay 0.8 -s 42 --keep 5"
    " --samplers 'top_k;temperature' --spec-type ngram-mod --spec-ngram-mod-n-min 4 --spec-ngram-mod-n-max 16"
    " --reasoning-format none -r stop --alias a,b --cache-reuse 16 --metrics --no-slots --fit off --no-ui"
)


@contextmanager
def serving(*argv: str) -> Iterator[Callable[[str, object], Any]]:
    """Asks a server for a path, with a body."""
    port = free_port()
    with subprocess.Popen(
        [*argv, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:

        def ask(path: str, body: object) -> Any:
            data = json.dumps(body).encode() if body is not None else None
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return json.load(response)

        try:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    ask("/health", None)
                    break
                except OSError:
                    assert process.poll() is None, "the server ended"
                    assert time.monotonic() < end, "the server doesn't get ready"
                    time.sleep(0.05)
            yield ask
        finally:
            process.kill()


def told(argv: list[str], model: Path) -> dict[str, Any]:
    """What a server says of itself and of a request, without what differs from start to start."""
    with serving(*argv, "--model", str(model), *LINE) as ask:
        answer = ask("/completion", {"prompt": "hello", "n_predict": 4})
        facts: dict[str, Any] = ask("/props", None) | {"settings": answer["generation_settings"]}
    return {name: fact for name, fact in facts.items() if name not in {"build_info", "media_marker"}}


def test_the_embedded_engine_serves_as_llama_server_does(test_model: Path, pytestconfig: pytest.Config) -> None:
    """The same command line gives the same settings, slots, aliases and endpoints."""
    embedded = told([sys.executable, "-P", str(EMBEDDED)], test_model)
    assert (embedded["settings"]["seed"], embedded["settings"]["speculative.types"]) == (42, "none,ngram-mod")
    found = found_llama_server(pytestconfig)
    if found.name != f"llama-server {pinned()}":
        pytest.skip(f"{found.name} isn't the pinned llama-server {pinned()} to compare with; {CURE}")
    assert embedded == told(list(found.argv), test_model)


def test_an_unknown_option_ends_the_engine_with_the_nearest_name(test_model: Path) -> None:
    argv = [sys.executable, "-P", str(EMBEDDED), "--model", str(test_model), "--cash-ram", "5"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    message = "xllamacpp_server: unknown option --cash-ram; did you mean --cache-ram?\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)
