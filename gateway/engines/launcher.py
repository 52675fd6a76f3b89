"""Starts the process of one engine, or finds the user's own server that already listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gateway import backends
from gateway.backends import Address, Backend
from gateway.config import Model, Prompts
from gateway.config.hidden import hider
from gateway.engines import memory, reading_step
from gateway.engines.launch import adopted, cure, launched, listens, weights_missing
from gateway.engines.machine import this_machine
from gateway.engines.process import Process
from gateway.engines.read_ahead import read_ahead
from gateway.engines.recipe import Machine, Recipe
from gateway.engines.residency import EngineForResidency, Residency
from gateway.engines.sandbox import Sandbox
from gateway.engines.spawn import spawn
from gateway.errors import WeightsMissing

if TYPE_CHECKING:
    from gateway.prompts.live import LivePrompts

log = logging.getLogger("ctxgate")


class Launcher:
    """fixed: the address that config.yaml names; None: the system chooses a port at each start. grace: seconds between
    SIGTERM and SIGKILL.

    process, plan: what runs and what started it; None if the server isn't ours. starts: since the gateway started.
    """

    def __init__(
        self,
        residency: Residency,
        fixed: Address | None = None,
        machine: Callable[[], Machine] = this_machine,
        grace: float = 5.0,
    ) -> None:
        self.process: Process | None = None
        self.recipe: Recipe | None = None
        self.prompts: LivePrompts | None = None
        """The prompts of the last process, if it can save them."""
        self.machine = machine
        self.starts = 0
        self._residency = residency
        self._fixed = fixed
        self._grace = grace
        self._prompt_folder: Path | None = None
        self._cache_ram: int | None = None
        """Bytes of the engine's memory for prompts beside its slots."""
        self._expected_speed: float | None = None
        """Seconds in which the engine reads a token, before it has read any."""

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None if it doesn't run or isn't ours."""
        process = self.process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def seconds_per_token(self) -> float:
        """How long the last process takes to read a token of a prompt; 0: unknown."""
        return self.prompts.speed.measured if self.prompts is not None else 0.0

    def free_fixed(self) -> Address | None:
        """The address that config.yaml names, unless another engine of this gateway holds its port."""
        fixed = self._fixed
        taken = fixed is not None and fixed.port in self._residency.ports_but(self)
        return None if taken else fixed

    async def served_already(self) -> bool:
        """Whether something listens at the address that config.yaml names, which a start would use."""
        address = self.free_fixed()
        return address is not None and await listens(address)

    async def missing(self, model: Model) -> WeightsMissing | None:
        """Why a start would fail: the weights aren't there, and no server listens at the fixed address.

        Checks again each time, in a thread; starts nothing.
        """
        error = await asyncio.to_thread(weights_missing, model)
        return None if error is None or await self.served_already() else error

    async def adopt(self, model: Model) -> Address | None:
        """The address of the user's own server, if one listens where config.yaml says."""
        address = self.free_fixed()
        if address is None or not await adopted(model, address):
            return None
        self.process = self.recipe = None
        return address

    async def launch(self, engine: EngineForResidency, since: float) -> Address:
        """Starts a process once memory is free for it; returns where it answers. since: when its first request came."""
        residency, model = self._residency, engine.model
        if (error := await asyncio.to_thread(weights_missing, model)) is not None:
            raise error
        saved = residency.prompts
        self._prompt_folder = await saved.ready() if saved is not None else None
        self._cache_ram = await residency.cache_ram(model)
        if residency.residents and model.path is not None:
            # It may have to wait until another one has gone. Nobody waits for this.
            asyncio.get_running_loop().run_in_executor(None, read_ahead, memory.files(model.path))
        await residency.admit(engine, since)
        free = self.free_fixed()
        port = free.port if free is not None else None

        async def start(recipe: Recipe) -> Process:
            return await self._spawn(model, recipe)

        return await launched(model, lambda: self._fit_machine(engine), port, start)

    def backend(self, model: Model, address: Address) -> Backend:
        """A backend for the running process."""
        backend = backends.load(model.runtime)(model, address)
        if self.process is not None:
            self._residency.holds_port(self, address)
            if self.prompts is not None:
                backend.keep_prompts(self.prompts)
        return backend

    def gone(self) -> None:
        """The process has ended."""
        self._residency.holds_port(self, None)

    async def _spawn(self, model: Model, recipe: Recipe) -> Process:
        residency = self._residency
        from gateway.engines import prompts  # the gateway's start needn't wait for it

        self.prompts = await prompts.live(model, recipe, residency.prompts)
        if self.prompts is not None and self._expected_speed is not None:
            self.prompts.speed.assume(self._expected_speed)
        process = await spawn(
            model.name,
            recipe,
            state_dir=residency.state_dir,
            pid_files=residency.pid_files,
            grace=self._grace,
            hide=hider(model.secrets),
            sandbox=Sandbox(model, self._prompt_folder) if residency.limits.sandbox == "auto" else None,
        )
        process.on_end(lambda: self._check_fitness(process, recipe))
        self.process = process
        self.recipe = recipe
        self.starts += 1
        return process

    def _check_fitness(self, process: Process, recipe: Recipe) -> None:
        """Remembers a program that was built for another processor, and logs that once."""
        program = recipe.argv[0]
        if process.illegal_instruction and program not in self._residency.unfit:
            self._residency.unfit.add(program)
            log.warning("%s %s%s", program, process.ending(), cure(process, recipe))

    def _expected(self, engine: EngineForResidency, machine: Machine) -> float | None:
        """Seconds to read a token: as measured earlier, else a guess for a CPU; None for a GPU that never ran it, and
        for a command whose weights nobody knows."""
        model = engine.model
        if model.path is None:
            return None
        try:
            if (peak := self._residency.learnt.peak(model)) is not None and peak.seconds_per_token is not None:
                return peak.seconds_per_token
            if engine.held.gpu or machine.gpus(()) is not None:
                return None
            weights = sum(file.stat().st_size for file in memory.files(model.path))
        except OSError:
            return None  # the weights were removed meanwhile; the engine will say so
        return reading_step.guess(weights, model.engine.threads or machine.cores)

    def _fit_machine(self, engine: EngineForResidency) -> Machine:
        saved, machine = self._residency.prompts, self.machine()
        self._expected_speed = self._expected(engine, machine)
        return replace(
            machine,
            unfit=frozenset(self._residency.unfit),
            prompts=self._prompt_folder,
            saving=saved.settings if saved is not None else Prompts(),
            cache_ram=self._cache_ram,
            gpu_need=engine.held.gpu,
            seconds_per_token=self._expected_speed,
        )


def ending(process: Process, plan: Recipe) -> str:
    """How a process has ended, and what to do about it."""
    return f"{process.ending()}{cure(process, plan)}"
