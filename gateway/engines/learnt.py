"""The measured memory needs and reading speeds of engines, saved between runs of the gateway."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from gateway.config import Model
from gateway.config.folders import whole
from gateway.engines.memory import Footprint
from gateway.engines.recipe import slots

log = logging.getLogger("ctxgate")

GROWTH = 1.02
"""A peak is saved again once it has grown by this factor."""
DRIFT = 8
"""A speed is saved again once it has changed by an eighth."""
MAX_ENTRIES = 500


class Peak(msgspec.Struct, kw_only=True):
    ram: int
    gpu: int = 0
    load_seconds: float | None = None
    seconds_per_token: float | None = None
    """How long reading a token of a prompt takes."""


class Learnt:
    """Peaks by model and context, in the file at `path`; None: in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._peaks: dict[str, Peak] | None = None

    def peak(self, model: Model) -> Peak | None:
        return self._known().get(_key(model))

    def saw(
        self, model: Model, footprint: Footprint, load_seconds: float | None, seconds_per_token: float = 0.0
    ) -> None:
        """Keeps the larger peak, and the last speed; 0: unknown. Blocks to write one small file if anything changed.

        Raises OSError without weights.
        """
        peaks, key = self._known(), _key(model)
        known = peaks.pop(key, None)
        if known is None:
            known = Peak(ram=0)
        before = known.ram, known.gpu, known.load_seconds, known.seconds_per_token
        if footprint.ram > known.ram * GROWTH or footprint.gpu > known.gpu * GROWTH:
            known.ram, known.gpu = max(known.ram, footprint.ram), max(known.gpu, footprint.gpu)
        if load_seconds is not None:
            known.load_seconds = round(load_seconds, 3)
        if seconds_per_token and abs(seconds_per_token - (known.seconds_per_token or 0.0)) > seconds_per_token / DRIFT:
            known.seconds_per_token = seconds_per_token
        peaks[key] = known
        if before != (known.ram, known.gpu, known.load_seconds, known.seconds_per_token):
            while len(peaks) > MAX_ENTRIES:
                del peaks[next(iter(peaks))]
            self._write(peaks)

    def _known(self) -> dict[str, Peak]:
        if self._peaks is None:
            self._peaks = {}
            if self._path is not None and self._path.exists():
                try:
                    self._peaks = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Peak])
                except (ValueError, OSError) as error:  # DecodeError and UnicodeDecodeError are ValueErrors
                    log.warning("can't read %s, starts a new one: %s", self._path, error)
        return self._peaks

    def _write(self, peaks: dict[str, Peak]) -> None:
        if self._path is None:
            return
        try:
            whole(self._path, msgspec.json.format(msgspec.json.encode(peaks), indent=1))
        except OSError as error:
            log.warning("can't save the engines' memory needs: %s", error)


def _key(model: Model) -> str:
    """Memory depends on weights, context and slots, and may depend on other arguments."""
    engine = model.engine
    weights: list[object] = [*(engine.command or ())]
    if model.path is not None:
        stat = model.path.stat()
        weights = [model.path, stat.st_size, int(stat.st_mtime)]
    parts = [model.runtime, *weights, model.context_window or 0, slots(model)]
    places = ("gpu_layers", "main_gpu", "tensor_split", "fit")
    names = (*places, "flash_attention", "kv_cache_type", "batch", "mmap", "draft")
    tuned = {name: getattr(engine, name) for name in names}
    given = [f"{name}={value}" for name, value in tuned.items() if value is not None]
    adapters = [f"adapter={adapter.path}" for adapter in engine.adapters]
    return "|".join(map(str, [*parts, *given, *adapters, *engine.args]))
