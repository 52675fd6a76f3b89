"""How much memory engines need and hold, how much there is, and what is saved of it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import Adapter, Draft, Model, Prompts, Residence
from gateway.engines import Engine, Residency, gpu, learnt, memory
from gateway.engines.learnt import Learnt
from gateway.engines.memory import MB, Budget, Footprint
from gateway.errors import WeightsMissing
from gateway.prompts.saved import SavedPrompts
from tests.support.gguf_files import gguf

GB = 1024 * MB
PROCESS = 48 * MB
"""A server without a model."""
BATCH = 512
"""Tokens computed at a time."""

# The estimate


LAYERS: dict[str, Any] = {
    "block_count": 32, "embedding_length": 4096, "context_length": 8192, "vocab_size": 128_000,
    "attention__head_count": 32, "attention__head_count_kv": 8,
}  # fmt: skip
# 32 layers, 8 heads, 128 numbers for the key and as many for the value, two bytes each.
CACHE = 32 * 8 * 256 * 2


@pytest.mark.parametrize(
    ("keys", "context", "parallel", "cache"),
    [
        ({}, 4096, 1, 4096 * CACHE),
        ({}, 4096, 3, 3 * 4096 * CACHE),
        ({}, None, 1, 8192 * CACHE),
        ({"attention__key_length": 64, "attention__value_length": 64}, 4096, 1, 4096 * CACHE // 2),
        ({"attention__head_count_kv": [0, 8] * 16}, 4096, 1, 4096 * CACHE // 2),
        ({"attention__head_count_kv": 32}, 4096, 1, 4096 * CACHE * 4),
    ],
    ids=["grouped heads", "slots", "the model's own window", "small heads", "a head count a layer", "all heads"],
)
def test_the_cache_is_estimated_from_metadata(
    tmp_path: Path, keys: dict[str, Any], context: int | None, parallel: int, cache: int
) -> None:
    path = gguf(tmp_path / "m.gguf", 10 * MB, **{**LAYERS, **keys})
    model = Model(name="m", runtime="llama.cpp", path=path, context_window=context)
    model = replace(model, engine=replace(model.engine, parallel=parallel))
    found = memory.estimate(model, on_gpu=False)
    computing = BATCH * 4 * (128_000 + 12 * 4096)
    assert found == Footprint(PROCESS + path.stat().st_size + cache + computing)
    on_gpu = memory.estimate(model, on_gpu=True)
    assert on_gpu.gpu == found.ram - PROCESS
    assert on_gpu.ram < found.ram


@pytest.mark.parametrize(
    ("kind", "bytes_each"),
    [
        (None, 2),
        ("bf16", 2),
        ("f32", 4),
        ("q8_0", 34 / 32),
        ("q4_0", 18 / 32),
        ("q4_1", 20 / 32),
        ("q5_0", 22 / 32),
        ("q5_1", 24 / 32),
        ("iq4_nl", 18 / 32),
    ],
)
def test_the_settings_of_the_cache_count(tmp_path: Path, kind: Any, bytes_each: float) -> None:
    path = gguf(tmp_path / "m.gguf", MB, **LAYERS)
    model = Model(name="m", runtime="llama.cpp", path=path, context_window=4096)
    model = replace(model, engine=replace(model.engine, parallel=1, kv_cache_type=kind, batch=64))
    cache = int(4096 * CACHE * bytes_each / 2)
    assert memory.window_bytes(model) == cache
    computing = 64 * 4 * (128_000 + 12 * 4096)
    assert memory.estimate(model, on_gpu=False).ram == PROCESS + path.stat().st_size + cache + computing


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        gguf(tmp_path / f"m-{part:05d}-of-00003.gguf", part * MB, **LAYERS)
    (tmp_path / "other-00001-of-00003.gguf").write_bytes(b"x")
    parts = memory.files(tmp_path / "m-00001-of-00003.gguf")
    assert [path.name for path in parts] == [f"m-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]


def test_an_mlx_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(MB))
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    shape = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128_000, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps({**heads, **shape}))
    model = Model(name="m", runtime="mlx", path=tmp_path, context_window=4096)
    model = replace(model, engine=replace(model.engine, parallel=1))
    computing = BATCH * 4 * (128_000 + 12 * 4096)
    assert memory.estimate(model, on_gpu=False).ram == PROCESS + MB + 4096 * CACHE + computing


def test_a_file_without_metadata_is_estimated_too(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no gguf")
    model = Model(name="m", runtime="llama.cpp", path=tmp_path / "m.gguf", context_window=1024)
    assert memory.estimate(model, on_gpu=False).ram > PROCESS


@pytest.mark.parametrize("config", ["", "[]", "7", '{"text_config": null}', '{"text_config": 7}', "[" * 100_000])
def test_a_folder_without_config_is_estimated_too(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    model = Model(name="m", runtime="mlx", path=tmp_path, context_window=1024)
    assert memory.estimate(model, on_gpu=False).ram > PROCESS


# The process and the machine


def test_a_process_and_what_it_used() -> None:
    usage = memory.usage(os.getpid())
    assert usage is not None
    assert 0 < usage.anonymous <= usage.resident <= usage.peak
    assert usage.cpu > 0


def test_a_process_that_is_gone() -> None:
    assert memory.usage(2**22 + 1) is None


HOLDS = "import os, sys, time; held = os.urandom(%d << 20); print(flush=True); %s; time.sleep(60)"


def test_the_memory_of_descendants_counts() -> None:
    code = HOLDS % (40, "pass")
    for size in (20, 1):
        code = HOLDS % (size, f"import subprocess; subprocess.Popen([sys.executable, '-c', {code!r}])")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        seen = memory.usage(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
    assert seen is not None
    assert 60 * MB < seen.anonymous <= seen.resident <= seen.peak < 200 * MB


def test_engines_never_get_all_of_the_machine() -> None:
    budget = memory.machine_budget()
    assert 0 < budget.ram < memory.total_memory()
    assert not budget.strict


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ((None, None), 8),
        (("4", None), 4),
        ((None, "4"), 4),
        (("max\n", "4\n"), 4),
        (("6\n", "4\n"), 4),
        (("4\n", "6\n"), 4),
        (("9\n", "max\n"), 8),
    ],
)
def test_a_control_group_bounds_the_memory(
    limits: tuple[str | None, ...], total: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As both versions of control groups write it."""
    files = [tmp_path / name for name in ("memory.max", "memory.limit_in_bytes")]
    for file, written in zip(files, limits, strict=True):
        if written is not None:
            file.write_text(written)
    monkeypatch.setattr(memory, "Path", lambda path: tmp_path / Path(path).name)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=8))
    assert memory.total_memory() == total


@pytest.mark.parametrize(
    ("need", "holds"),
    [
        (Footprint(10), True),
        (Footprint(11), False),
        (Footprint(1, 5), True),
        (Footprint(1, 6), False),
    ],
)
def test_a_budget(need: Footprint, holds: bool) -> None:
    assert Budget(10, 5).holds(need) is holds
    assert Budget(10, None).holds(need) is (need.ram <= 10)


# GPUs: what the tools print is from their manuals; the tools stand on a PATH of the test's own.

NVIDIA = {
    "--query-gpu=memory.total,memory.used": "24564, 20867\n24564, 12\n",
    "--query-compute-apps=pid,used_gpu_memory": "1234, 8021\n1235, [N/A]\n1234, 100\n",
}
ROCM = {
    "--showmeminfo": '{"card0": {"VRAM Total Memory (B)": "17163091968", "VRAM Total Used Memory (B)": "1"}}',
    "--showpids": '{"system": {"PID77": "llama-server, 1, 4831838208, 0, 31"}}',
}


def tool(folder: Path, name: str, answers: dict[str, str]) -> None:
    cases = "".join(f"  {key}) cat <<'END'\n{answer}\nEND\n  ;;\n" for key, answer in answers.items())
    path = folder / name
    path.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}  *) exit 9 ;;\nesac\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("name", "answers", "total", "processes"),
    [
        ("nvidia-smi", NVIDIA, 2 * 24564 * MB, {1234: 8121 * MB}),
        ("rocm-smi", ROCM, 17163091968, {77: 4831838208}),
        (
            "rocm-smi",
            {
                "--showmeminfo": ROCM["--showmeminfo"],
                "--showpids": '{"system": {"PID6": "x, 1, 5", "PID7": "idle, 1", "PID8": "x, 1, no", "PIDs": "x, 1, 5",'
                ' "9": "x, 1, 5"}}',
            },
            17163091968,
            {6: 5},
        ),
        ("nvidia-smi", {}, None, {}),
        ("rocm-smi", {"--showmeminfo": "no json", "--showpids": "no json"}, None, {}),
        ("rocm-smi", {"--showmeminfo": "[7]", "--showpids": '{"system": 7}'}, None, {}),
        ("rocm-smi", {"--showmeminfo": '{"card0": {"VRAM Total Memory (B)": "much"}}', "--showpids": "[]"}, None, {}),
        ("nvidia-smi", {"--query-gpu=memory.total,memory.used": "², 1", "--query-compute-apps": "1, ²"}, None, {}),
        ("other", {}, None, {}),
    ],
    ids=[
        "nvidia",
        "rocm",
        "rocm, processes of which it says nothing",
        "nvidia that fails",
        "rocm that says nothing",
        "rocm, lists",
        "rocm, words",
        "nvidia, no digits",
        "no tool",
    ],
)
def test_gpu_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    answers: dict[str, str],
    total: int | None,
    processes: dict[int, int],
) -> None:
    tool(tmp_path, name, answers)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert gpu.total() == total
    assert gpu.by_process() == processes
    assert memory.machine_budget().gpu == (None if sys.platform == "darwin" else total)


def test_a_tool_that_prints_no_text_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\nprintf '\\377, 1\\n'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert gpu.total() is None
    assert gpu.by_process() == {}


# What is learnt

TUNED: list[dict[str, Any]] = [
    {"gpu_layers": 3},
    {"main_gpu": 1},
    {"tensor_split": (1.0, 2.0)},
    {"fit": False},
    {"flash_attention": True},
    {"kv_cache_type": "q8_0"},
    {"batch": 64},
    {"mmap": False},
    {"draft": Draft(ngram=False)},
    {"parallel": 3},
    {"args": ("--swa-full",)},
    {"adapters": (Adapter(path=Path("/a.gguf")),)},
]


@pytest.fixture
def model(test_model: Path) -> Model:
    return Model(name="m", runtime="llama.cpp", path=test_model, context_window=512)


@pytest.mark.parametrize("tuned", TUNED, ids=[next(iter(tuned)) for tuned in TUNED])
def test_a_peak_is_of_one_setting(model: Model, tuned: dict[str, Any]) -> None:
    known = Learnt(None)
    known.saw(model, Footprint(100 * MB), None)
    other = replace(model, engine=replace(model.engine, **tuned))
    assert known.peak(model) is not None
    assert known.peak(other) is None
    known.saw(other, Footprint(50 * MB), None)
    assert [peak.ram for each in (model, other) if (peak := known.peak(each))] == [100 * MB, 50 * MB]


def test_threads_need_no_memory(model: Model) -> None:
    known = Learnt(None)
    known.saw(model, Footprint(100 * MB), None)
    assert known.peak(replace(model, engine=replace(model.engine, threads=7))) is not None


def test_the_largest_peak_is_kept(tmp_path: Path, model: Model) -> None:
    path = tmp_path / "deep/engines.json"
    known = Learnt(path)
    assert known.peak(model) is None
    for ram, seconds in ((100 * MB, 2.0), (300 * MB, 1.0), (200 * MB, None)):
        known.saw(model, Footprint(ram), seconds)
    for each in (known, Learnt(path)):
        peak = each.peak(model)
        assert peak is not None
        assert (peak.ram, peak.load_seconds) == (300 * MB, 1.0)


def test_the_last_reading_speed_is_kept(tmp_path: Path, model: Model) -> None:
    path = tmp_path / "engines.json"
    known = Learnt(path)
    seen = []
    for speed in (0.0, 0.01, 0.0, 0.0101, 0.02):  # 0: it has read too little; a small change isn't written
        known.saw(model, Footprint(MB), None, speed)
        peak = Learnt(path).peak(model)
        assert peak is not None
        seen.append(peak.seconds_per_token)
    assert seen == [None, 0.01, 0.01, 0.01, 0.02]


def test_another_context_is_another_peak(tmp_path: Path, model: Model) -> None:
    known = Learnt(tmp_path / "engines.json")
    known.saw(model, Footprint(MB), 1.0)
    other = replace(model, context_window=1024)
    assert known.peak(other) is None
    renamed = replace(model, name="other name", residence=Residence(pinned=True))
    assert known.peak(renamed) is not None


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"a": {"ram": "much"}}', b'{"\xff": {"ram": 1}}'])
def test_a_broken_file_is_started_anew(
    tmp_path: Path, model: Model, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "engines.json"
    path.write_bytes(text)
    known = Learnt(path)
    assert known.peak(model) is None
    assert "starts a new one" in caplog.text
    known.saw(model, Footprint(MB), 1.0)
    assert Learnt(path).peak(model) is not None


def test_only_so_many_peaks_are_kept(tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt, "MAX_ENTRIES", 2)
    path = tmp_path / "engines.json"
    kept = Learnt(path)
    models = [replace(model, context_window=window) for window in (256, 512, 1024)]
    for each in models[:2]:
        kept.saw(each, Footprint(MB), 1.0)
    kept.saw(models[0], Footprint(MB), 2.0)  # seen again, it is no longer the oldest
    kept.saw(models[2], Footprint(MB), 1.0)
    assert [Learnt(path).peak(each) is not None for each in models] == [True, False, True]


def test_peaks_that_can_t_be_saved_are_known_until_the_end(
    tmp_path: Path, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Learnt(tmp_path / "file/engines.json")
    kept.saw(model, Footprint(MB, 2 * MB), 1.0)
    peak = kept.peak(model)
    assert peak is not None
    assert (peak.ram, peak.gpu) == (MB, 2 * MB)
    assert "can't save the engines' memory needs" in caplog.text


def test_a_peak_that_hardly_grew_is_not_written(tmp_path: Path, model: Model) -> None:
    path = tmp_path / "engines.json"
    kept = Learnt(path)
    kept.saw(model, Footprint(100 * MB, 100 * MB), 1.0)
    written = path.stat().st_mtime_ns, path.read_bytes()
    kept.saw(model, Footprint(101 * MB, 101 * MB), 1.0)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == written
    kept.saw(model, Footprint(100 * MB, 103 * MB), 1.0)
    peak = Learnt(path).peak(model)
    assert peak is not None
    assert (peak.ram, peak.gpu) == (100 * MB, 103 * MB)


def test_the_weights_of_pictures_count(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", MB, **LAYERS)
    alone = Model(name="m", runtime="llama.cpp", path=path, context_window=1024)
    with_pictures = replace(alone, mmproj_path=gguf(tmp_path / "p.gguf", 3 * MB))
    more = memory.estimate(with_pictures, on_gpu=False).ram - memory.estimate(alone, on_gpu=False).ram
    assert more == (tmp_path / "p.gguf").stat().st_size
    missing = replace(alone, mmproj_path=tmp_path / "none.gguf")
    assert memory.estimate(missing, on_gpu=False) == memory.estimate(alone, on_gpu=False)


@pytest.mark.parametrize(("with_gpu", "seen"), [(True, 8121 * MB), (False, 7 * MB)])
async def test_what_a_process_holds_of_the_gpu(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch, with_gpu: bool, seen: int
) -> None:
    answers = {key: answer.replace("1234", str(os.getpid())) for key, answer in NVIDIA.items()}
    tool(tmp_path, "nvidia-smi", answers)
    residency = Residency(budget=lambda: Budget(10**12, 10**12))
    engine = Engine(model, residency=residency)
    await residency.admit(engine, 0.0)
    engine.held = Footprint(1, 7 * MB)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    await residency.measure(engine, os.getpid(), with_gpu=with_gpu)
    peak = residency.learnt.peak(model)
    assert peak is not None
    assert peak.gpu == seen
    residency.close()


async def test_weights_that_go_before_they_are_measured(tmp_path: Path, model: Model) -> None:
    gone = replace(model, path=tmp_path / "gone.gguf")
    saved = SavedPrompts(Prompts(), tmp_path / "prompts")
    residency = Residency(prompts=saved)
    for asked in (residency.admit(Engine(gone, residency=residency), 0.0), residency.cache_ram(gone)):
        with pytest.raises(WeightsMissing, match="its weights can't be read") as caught:
            await asked
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("layers", [4_000_000_000, "many", 0, [1, 2]])
def test_what_a_file_says_of_its_layers_costs_no_memory(tmp_path: Path, layers: Any) -> None:
    path = gguf(tmp_path / "m.gguf", 0, **{**LAYERS, "block_count": layers})
    model = Model(name="m", runtime="llama.cpp", path=path, context_window=1024)
    per_layer = 1024 * CACHE // 32
    assert memory.window_bytes(model) == (layers if layers == 4_000_000_000 else 24) * per_layer
