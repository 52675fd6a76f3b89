"""The environment that engines and their tools inherit: ours may hold the keys of other models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "DRI_PRIME"),
    )
)
PREFIXES = (
    *("LC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "MALLOC_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "HIP_", "HSA_", "ROCR_", "ROCM_", "ROCBLAS_", "HIPBLASLT_", "GPU_", "AMD_"),
    *("VK_", "MESA_", "RADV_", "MTL_", "METAL_", "SYCL_", "ONEAPI_", "ZE_", "GGML_", "LLAMA_", "MLX_"),
    *("HF_HUB_", "HF_HOME", "TRANSFORMERS_"),
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH")
"""Variables with these words in their names don't pass, whatever PREFIXES say."""

_SPINS = {"GOMP_SPINCOUNT": "10000"}
"""How often a thread of GNU OpenMP, which llama.cpp's builds use, looks for work before it sleeps: 0.1 ms or less.
Its own 300,000 keep a core busy between the tokens of a small model and after each answer, while the gateway and other
engines want it: beside another tenant's, a request to the test model took twice as long on two cores, now 1.64 times.
Reading and writing take as long as before (135M and 0.5B, within 2 %)."""


def for_engine(more: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The same as `inherited`, for an engine. Its idle threads sleep soon, unless `environ` says how they wait."""
    found = inherited(more, environ)
    return found if "OMP_WAIT_POLICY" in found else {**_SPINS, **found}


def inherited(more: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `environ` that a child process gets: those of NAMES and PREFIXES, and `more`."""
    named = {*more}
    found = {
        name: value
        for name, value in environ.items()
        if name in NAMES or name in named or (name.startswith(PREFIXES) and not _is_secret(name))
    }
    if "PYTHONPATH" in found:
        # The child has another working folder.
        parts = found["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in parts if part)
    return found


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in _SECRET)
