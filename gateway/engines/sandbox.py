"""What an engine's process may do: read its weights, libraries and Python, use devices, write its own folder.

On Linux, Landlock holds it to that (`confine.py`); on macOS, a profile of sandbox-exec. Everywhere on Linux it can't
gain privileges, as by `sudo`. An engine with a `command` of the operator's own is held to that alone: nobody else knows
which files it needs.
"""

from __future__ import annotations

import glob
import json
import os
import re
import site
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from gateway.config import Model
from gateway.engines import memory
from gateway.engines.recipe import Recipe

SYSTEM = (
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share", "/usr/local/lib"),
    *("/usr/local/lib64", "/usr/local/share", "/usr/local/cuda*", "/opt/cuda*", "/opt/rocm*", "/opt/intel"),
    *("/opt/amdgpu*", "/nix/store", "/gnu/store", "/run/opengl-driver", "/home/linuxbrew/.linuxbrew", "/sys"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/version", "/proc/filesystems", "/proc/bus"),
    *("/proc/devices", "/proc/modules", "/proc/driver", "/proc/loadavg", "/proc/uptime", "/proc/cmdline"),
    *("/etc/ld.so.*", "/etc/localtime", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf"),
    *("/etc/gai.conf", "/etc/passwd", "/etc/group", "/etc/ssl/certs", "/etc/ssl/openssl.cnf"),
    *("/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/ca-certificates*", "/etc/vulkan"),
    *("/etc/OpenCL", "/etc/glvnd", "/etc/egl", "/etc/drirc", "/etc/nvidia*", "/etc/alternatives", "/etc/os-release"),
)
"""Libraries, drivers and facts about the machine. Not the folders of programs, whose shells a loader could run, nor
what /proc says of other processes."""
DEVICES = ("/dev", "/proc/self", "/tmp/nvidia-mps")  # noqa: S108 - a fixed place of NVIDIA's
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shared between threads of an engine, and with the GPU's driver
LIBRARIES = ("lib", "lib32", "lib64")
PACKAGES = ("site-packages", "dist-packages")
PATHS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")
"""Variables that name folders and files which an engine reads."""
OWN_FOLDER = {"HOME": "", "XDG_CACHE_HOME": "cache", "TMPDIR": "", "CUDA_CACHE_PATH": "cache/cuda"}
"""Variables of folders that libraries write, and where they are in the engine's own."""
SHELLS = ("sh", "bash", "zsh", "dash", "ksh", "csh", "tcsh")
SECRETS = (".ssh", ".gnupg", ".aws", ".config", ".kube", ".docker", ".netrc", ".git-credentials", "Library/Keychains")
"""In a home folder."""
SANDBOX_EXEC = Path("/usr/bin/sandbox-exec")

Allowed = Mapping[str, tuple[str, ...]]
"""See `gateway.engines.confine.confine`."""


class Start(Struct, frozen=True):
    """argv, env: as for `Process.start`. rules: for `guard.py`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    rules: str = ""


class Sandbox(Struct, frozen=True):
    """Holds a model's engine. prompts: the folder of saved prompts, if it saves any."""

    model: Model
    prompts: Path | None = None

    def start(self, recipe: Recipe, folder: Path | None) -> Start:
        """How to start the engine, whose own folder is `folder`. Reads the heads of programs."""
        rules = allowed(self.model, recipe, folder, self.prompts) if folder is not None else None
        if rules is None or folder is None:
            return Start(recipe.argv, rules="{}")
        env = {name: value for name, value in environment(folder).items() if name not in recipe.pass_env}
        if sys.platform == "darwin":
            if not SANDBOX_EXEC.exists():
                return Start(recipe.argv)
            text = profile(folder, Path.home(), [*_weights(self.model), *_around(Path(recipe.argv[0]))], self.prompts)
            return Start((str(SANDBOX_EXEC), "-p", text, *recipe.argv), env)
        return Start(recipe.argv, env, written(rules))


def allowed(model: Model, recipe: Recipe, folder: Path, prompts: Path | None) -> Allowed | None:
    """What the engine may do with files; None if nobody knows what it needs. Reads the heads of programs.

    folder: its own. prompts: that of saved prompts, if it saves any.
    """
    program = Path(recipe.argv[0])
    loader = interpreter(program) if sys.platform.startswith("linux") else ""
    if model.engine.command is not None or loader is None:
        return None
    environment = {**os.environ, **recipe.env}
    named = (part for name in PATHS for part in environment.get(name, "").split(os.pathsep))
    # A Python may find packages of another one, by a .pth file.
    packages = (path for path in sys.path if Path(path).name in PACKAGES)
    own = str(Path(__file__).parents[1]), site.getusersitepackages(), *packages
    read = (*SYSTEM, *_around(program), *own, *_weights(model), *filter(None, named))
    write = [SHARED_MEMORY, str(folder), *([str(prompts)] if prompts is not None else [])]
    return {
        "read": tuple(dict.fromkeys(read)),
        "execute": (os.path.realpath(program), loader),
        "use": DEVICES,
        "write": tuple(write),
    }


def environment(folder: Path) -> dict[str, str]:
    """The variables that send libraries to the engine's own folder with what they would write elsewhere."""
    # Python looks for its user's packages below HOME.
    return {"PYTHONUSERBASE": site.getuserbase(), **{name: str(folder / inner) for name, inner in OWN_FOLDER.items()}}


def written(rules: Allowed | None) -> str:
    """For `guard.py`: with the paths that patterns match; "{}" for no rules."""
    return json.dumps({kind: [*_matching(paths)] for kind, paths in (rules or {}).items()})


def _matching(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield from sorted(glob.glob(path)) if "*" in path and path in SYSTEM else (path,)


def _around(program: Path) -> Iterator[str]:
    """The folders in which a program, or a Python, finds its libraries."""
    for place in dict.fromkeys((program, Path(os.path.realpath(program)))):
        root = place.parent.parent
        if (root / "pyvenv.cfg").is_file():
            yield str(root)
        elif place.parent.name == "bin":
            yield from (str(root / name) for name in LIBRARIES)
        if place.parent.name != "bin":
            yield str(place.parent)  # as CMake builds it, with the libraries beside


def _weights(model: Model) -> Iterator[str]:
    """The files and folders that its settings name, and what links in such a folder lead to, as in Hugging Face's
    cache."""
    args = (Path(part) for arg in model.engine.args for part in re.split(r"[=,:]", arg) if "/" in part)
    named = [model.path, model.mmproj_path, *model.engine.files.values(), *(path for path in args if path.exists())]
    for path in filter(None, named):
        yield str(path)
        if path.is_dir():
            yield from (os.path.realpath(file) for file in sorted(path.iterdir()) if file.is_symlink())
        elif path == model.path:
            yield from map(str, memory.files(path))


def interpreter(program: Path) -> str | None:
    """The loader that the system runs with a program for Linux; the program itself if it needs none; None for a script,
    whose shell nobody knows, and for what can't be read."""
    try:
        with program.open("rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02" or len(head) < 64:
                return None
            order = "<" if head[5] == 1 else ">"
            (at,), (size, count) = struct.unpack_from(f"{order}Q", head, 32), struct.unpack_from(f"{order}HH", head, 54)
            for number in range(count):
                file.seek(at + number * size)
                kind, _, start, _, _, length = struct.unpack_from(f"{order}IIQQQQ", file.read(size))
                if kind == 3:  # PT_INTERP
                    file.seek(start)
                    return file.read(length).rstrip(b"\0").decode()
    except (OSError, struct.error, UnicodeDecodeError):
        return None
    return str(program)


def profile(folder: Path, home: Path, reads: Iterable[str], prompts: Path | None) -> str:
    """For sandbox-exec: it writes nothing in the home folder, reads no keys and nothing of the gateway's, and runs no
    shell. A later rule wins over an earlier one. folder: the engine's own, `work/MODEL` in the gateway's."""
    state = folder.parents[1]
    own = [folder, *([prompts] if prompts is not None else [])]

    def beneath(paths: Iterable[Path | str]) -> str:
        return " ".join(f"(subpath {json.dumps(os.path.realpath(path))})" for path in paths)

    shells = " ".join(f'(literal "/bin/{name}")' for name in SHELLS)
    return "\n".join(
        (
            "(version 1)",
            "(allow default)",
            f"(deny file-write* {beneath([home, state])})",
            f"(deny file-read* {beneath([state, *(home / name for name in SECRETS)])})",
            f"(allow file-read* {beneath(reads)})",
            f"(allow file-read* file-write* {beneath(own)})",
            f"(deny process-exec {shells})",
        )
    )


def describe(
    landlock: int, platform: str = sys.platform, exists: Callable[[Path], bool] = Path.exists
) -> tuple[bool, str]:
    """Whether this system holds engines of the gateway's own, and to what. landlock: its version."""
    if platform.startswith("linux") and landlock:
        return True, f"engines read their weights and libraries, and write their own folder alone (Landlock {landlock})"
    if platform.startswith("linux"):
        return False, "engines can't gain privileges, but have your rights: this kernel has no Landlock"
    if platform == "darwin" and exists(SANDBOX_EXEC):
        return True, "engines can't write your home folder, read your keys or run a shell (sandbox-exec)"
    return False, "engines have your rights: this system has nothing to hold them"
