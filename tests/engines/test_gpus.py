"""Which GPU gets a model, and what people see of the GPUs' memory.

No GPU is here: a program `nvidia-smi` prints what the real one prints, and a `llama-server` in front of the real one
lists GPUs as it does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.config import Model, Runtime
from gateway.engines import gpu_placement, machine
from gateway.engines.gpu import Card, nvidia_cards, rocm_cards
from gateway.engines.gpu_placement import MARGIN, MB
from gateway.engines.machine import this_machine
from gateway.engines.recipe import Machine, recipe
from tests.cli.commands import answering, config, ctxgate, environment, serving
from tests.llama_server import EMBEDDED, program
from tests.patience import PATIENCE
from tests.ports import free_port

GB = 1024 * MB


@pytest.mark.parametrize(
    ("need", "free", "gpu"),
    [
        (4 * GB, [], None),
        (4 * GB, [24 * GB], None),
        (4 * GB, [8 * GB, 24 * GB, 16 * GB], 1),
        (4 * GB, [24 * GB, 24 * GB], 0),
        (24 * GB - MARGIN, [8 * GB, 24 * GB], 1),
        (24 * GB - MARGIN + 1, [8 * GB, 24 * GB], None),
        (40 * GB, [24 * GB, 24 * GB], None),
        (400 * GB, [24 * GB, 24 * GB], None),
    ],
    ids=[
        "none", "one, which llama.cpp fills by itself", "the roomiest", "the first of two alike",
        "with what stays free", "a byte too large", "divided", "larger than all",
    ],
)  # fmt: skip
def test_the_gpu_that_gets_all_of_a_model(need: int, free: Sequence[int], gpu: int | None) -> None:
    assert gpu_placement.whole(need, free) == gpu


LISTED = """\
ggml_cuda_init: found 2 CUDA devices (Total VRAM: 48241 MiB):
Available devices:
  CUDA0: NVIDIA GeForce RTX 4090 (24080 MiB, 3210 MiB free)
  CUDA1: NVIDIA GeForce RTX 3090 (24161 MiB, 23868 MiB free)
"""


@pytest.mark.parametrize(
    ("output", "free"),
    [
        (LISTED, (3210 * MB, 23868 * MB)),
        ("Available devices:\n  (none)\n", ()),
        ("error: invalid argument: --list-devices\n", ()),
        # The second is the processor's own, and has no number for --main-gpu.
        (LISTED.replace("CUDA0: NVIDIA", "Vulkan0: NVIDIA").replace("CUDA1: NVIDIA", "Vulkan1: Intel"), ()),
    ],
    ids=["two", "none", "a program that doesn't know the option", "another driver"],
)
def test_what_a_program_says_of_its_gpus(output: str, free: tuple[int, ...]) -> None:
    assert gpu_placement.devices(output) == free


def test_the_embedded_engine_lists_none_here() -> None:
    program = sys.executable, "-P", str(EMBEDDED)
    assert this_machine().gpus(program) is None
    assert gpu_placement.none(machine.list_devices(program))


def test_no_program_and_no_gpus(tmp_path: Path) -> None:
    assert not this_machine().gpus([str(tmp_path / "gone")])


TWO = Machine(
    cores=2,
    which=lambda name: f"/bin/{name}",
    has=lambda module: True,
    free_port=lambda: 40001,
    gpus=lambda command: gpu_placement.devices(LISTED),
    gpu_need=4 * GB,
)
EMBEDDED_TWO = Machine(
    cores=2,
    which=lambda name: None,
    has=lambda module: True,
    free_port=lambda: 40001,
    gpus=lambda command: gpu_placement.devices(LISTED) if command[-1].endswith("xllamacpp_server.py") else (),
    gpu_need=4 * GB,
)
ONE_GPU = {"--split-mode": "none", "--main-gpu": "1"}


@pytest.mark.parametrize(
    ("machine", "engine", "placed"),
    [
        (TWO, Runtime(), ONE_GPU),
        (EMBEDDED_TWO, Runtime(), ONE_GPU),
        (TWO, Runtime(main_gpu=0), {"--split-mode": "none", "--main-gpu": "0"}),
        (TWO, Runtime(tensor_split=(3, 1.5)), {"--tensor-split": "3,1.5"}),
        (TWO, Runtime(gpu_layers=9), {}),
        (TWO, Runtime(fit=True), {}),
        (TWO, Runtime(args=("-ts=1,1",)), {}),
        (TWO, Runtime(args=("--device", "CUDA0")), {}),
    ],
    ids=["chosen", "chosen, embedded", "main_gpu", "tensor_split", "gpu_layers", "fit", "args, joined", "args"],
)
def test_the_options_of_a_place(machine: Machine, engine: Runtime, placed: dict[str, str]) -> None:
    made = recipe(Model(name="a", runtime="llama.cpp", path=Path("/m/a.gguf"), engine=engine), machine, 1)
    names = "--split-mode", "--main-gpu", "--tensor-split"
    assert {name: value for name, value in pairwise(made.argv) if name in names} == placed


def test_where_no_gpu_counts_no_program_is_asked() -> None:
    def ask(command: Sequence[str]) -> Sequence[int]:
        raise AssertionError(command)

    machine = Machine(cores=2, which=lambda name: None, has=lambda module: True, free_port=lambda: 1, gpus=ask)
    model = Model(name="a", runtime="llama.cpp", path=Path("/m/a.gguf"), engine=Runtime(batch=512))
    assert "--main-gpu" not in recipe(model, machine, 1).argv


def test_cards() -> None:
    assert nvidia_cards("24564, 20867\n24576, 12\n") == (Card(24564 * MB, 20867 * MB), Card(24576 * MB, 12 * MB))
    assert nvidia_cards("24564, [N/A]\n[N/A], 5\n") == (Card(24564 * MB, 0),)
    rocm = {"card0": {"VRAM Total Memory (B)": "17163091968", "VRAM Total Used Memory (B)": "1048576"}, "system": {}}
    assert rocm_cards(json.dumps(rocm)) == (Card(17163091968, 1048576),)


# All of it together


@pytest.fixture
def gpus(tmp_path: Path, llama_server: Path) -> str:
    """A PATH with two GPUs, whose driver says that the newest engine holds 286 MiB of them."""
    folder = tmp_path / "bin"
    listed = f"cat <<'END'\n{LISTED}END\nexit"
    asked = f'if [ "$1" = --list-devices ]; then\n{listed}\nfi'
    program(folder, f'{asked}\necho $$ > {folder}/pid\nexec {llama_server} "$@"')
    (folder / "nvidia-smi").write_text(
        '#!/bin/sh\ncase "$1" in\n'
        "  --query-gpu=memory.total,memory.used) printf '24564, 20867\\n24576, 12\\n' ;;\n"
        f'  --query-compute-apps=pid,used_gpu_memory) echo "$(cat {folder}/pid), 286" ;;\n'
        "  *) exit 9 ;;\nesac\n"
    )
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}:{environment(tmp_path)['PATH']}"


def measured_engine(folder: Path) -> dict[str, Any]:
    """The engine's status, once the driver was asked what it holds."""
    deadline = time.monotonic() + PATIENCE
    while True:
        (model,) = json.loads(ctxgate("status", "--json", cwd=folder).stdout)["models"]
        engine: dict[str, Any] = model["engine"]
        if engine["gpu_seen_bytes"] is not None:
            return engine
        assert time.monotonic() < deadline, engine


def test_a_model_gets_the_gpu_with_room_and_people_see_what_it_holds(
    tmp_path: Path, test_model: Path, gpus: str
) -> None:
    port = free_port()
    config(
        tmp_path,
        f"active_model: tiny\nserver: {{port: {port}}}\n"
        f"models: {{tiny: {{runtime: llama.cpp, path: {test_model}, context_window: 512, threads: 1}}}}\n",
    )
    with serving(tmp_path, PATH=gpus), answering(port):
        assert ctxgate("load", "tiny", cwd=tmp_path).returncode == 0
        engine = measured_engine(tmp_path)
        line = " ".join(psutil.Process(engine["pid"]).cmdline())
        assert "--split-mode none --main-gpu 1" in line
        assert engine["gpu_bytes"] > 0
        shown = ctxgate("status", "--once", cwd=tmp_path).stdout
        doctor = ctxgate("doctor", cwd=tmp_path, PATH=gpus).stdout
    assert engine["gpu_seen_bytes"] == 286 * MB
    assert "GPU MEMORY" in shown
    assert "300 MB of" in shown
    assert "51.5 GB for engines; by the driver, GPU 0: 3.9 GB free, GPU 1: 25.8 GB free" in doctor
