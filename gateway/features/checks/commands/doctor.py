"""`ctxgate doctor`"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from msgspec.structs import replace

from gateway.cli.client import PROBE_SECONDS, RunningGateway, base_url, foreign, headers, transport
from gateway.cli.options import Command, config_option, configuration, port_option, url_option
from gateway.cli.running import located
from gateway.cli.text import say
from gateway.errors import GatewayError, ProviderInvalidResponse
from gateway.features.checks.findings import Finding, State, shown
from gateway.features.clients.contracts import CLIENTS, CONTRACTS, Contract, Step, filled
from gateway.wire.text import printable

if TYPE_CHECKING:
    import httpx

    from gateway.backends import Address
    from gateway.config import Config, Model
    from gateway.engines.recipe import Machine

EXAMPLES = """\
examples:
  ctxgate doctor
  ctxgate doctor --client codex
  ctxgate doctor --port 8000 --client opencode
  ctxgate doctor --client claude-code --model lfm25-24b   two turns of it, too, if it is installed
"""

ANSWER_SECONDS = 120
"""Bound on one answer: the request may have to start the engine."""
SPARE_DISK = 1 << 30
"""Bytes that should stay free for logs and the store."""

LEAST_CACHED = 0.9
"""The share of a second turn's prompt that should be cached: it is little longer than the first one's."""

GGUF_RUNTIMES = ("llama.cpp", "llama-cpp-python")


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option("--client", type=click.Choice(sorted(CLIENTS)), help="Ask what this client would ask.")
@click.option("--model", metavar="NAME", help="The model for --client (default: the active one).")
@url_option
@port_option
def doctor(config: Path | None, client: str | None, model: str | None, url: str | None, port: int | None) -> int:
    """Checks everything that serving needs: the configuration, engines, ports, disk and memory.

    With --client, sends the running gateway that client's requests, and prints how to point the client at it. Runs
    Codex, Claude Code, opencode and Qwen Code, where installed, for two turns of a conversation, in a home folder of
    their own; says how long their first request is, how much of the second prompt was cached, and what changed in it.
    That can take minutes. Finds a gateway that was started with another --port or --uds by itself.
    """
    loaded = configuration(config)
    loaded = replace(loaded, server=located(loaded.server, config, url, port, others=config is None))
    findings: Iterator[Finding]
    if client is not None:
        chosen = loaded.resolve(model, "chat")
        client = CLIENTS[client]
        contract, address = CONTRACTS[client], base_url(loaded.server)
        text = filled(contract.snippet, address, chosen.name, chosen.context_window)
        say(f"# {contract.place}\n{text}")
        for place, more in contract.also.items():
            say(f"# {place}\n{filled(more, address, chosen.name, chosen.context_window)}")
        room = list(_window(client, contract, loaded, chosen))
        fits = all(found.state != "wrong" for found in room)
        turns = _two_turns(contract, text, loaded, chosen) if fits else iter(())
        findings = chain(room, _client_findings(contract, loaded, chosen), turns)
    else:
        findings = _findings(loaded)
    return shown(findings)


def _findings(config: Config) -> Iterator[Finding]:
    yield Finding("ok", "config", f"{config.source}, active: {config.active_model}")
    for note in config.notes:
        yield Finding("note", "config", str(note))
    yield from running(config)
    machine, notes = _machine(), _notes(config)
    for model in config.models.values():
        found = model_finding(config, model, machine, notes.get(model.name))
        yield found
        if found.state != "wrong":
            yield from _trained(model)
            yield from _history(model)
    yield _sandbox(config)
    yield disk(config)
    yield _memory(config)
    yield from _gpus(config)


def _tls(config: Config) -> Finding | None:
    """What is wrong with the gateway's certificate."""
    if (tls := config.server.https) is None:
        return None
    from gateway.server.tls import Certificate

    try:
        Certificate(tls.cert, tls.key)
    except GatewayError as error:
        fault, _, cure = error.message.partition("; ")
        return Finding("wrong", "tls", fault, cure)
    return None


def running(config: Config) -> Iterator[Finding]:
    """Whether the gateway runs at its address, or something else does; first of all, whether it could."""
    import httpx

    server = config.server
    if (fault := _tls(config)) is not None:
        yield fault
        return
    address = str(server.uds) if server.uds is not None else base_url(server)
    try:
        with httpx.Client(transport=transport(server), base_url=base_url(server), timeout=PROBE_SECONDS) as client:
            health = client.get("/health")
        if health.status_code == 200 and "active_model" in health.text:
            other = foreign(_status(config), config.source)
            if other is not None:
                cure = "ctxgate serve --port N runs this folder's beside it; --config asks after the other"
                yield Finding("note", "gateway", f"runs at {address}, but with another configuration: {other}", cure)
                return
            yield Finding("ok", "gateway", f"runs at {address}")
        else:
            cure = "stop it, or give the gateway another port: server.port"
            yield Finding("wrong", "port", f"something else answers at {address}", cure)
    except (httpx.TimeoutException, httpx.ProtocolError):
        cure = "stop it, or give the gateway another port: server.port"
        yield Finding("wrong", "port", f"something else listens at {address} but doesn't answer", cure)
    except httpx.TransportError:
        yield Finding("note", "gateway", f"isn't running at {address}", "start it: ctxgate serve")


def _machine() -> Machine:
    """This one; a llama-server on its PATH that was built for another processor is known as unfit."""
    from gateway.engines.machine import runs, this_machine

    machine = this_machine()
    program = machine.which("llama-server")
    return replace(machine, unfit=frozenset({program})) if program is not None and not runs(program) else machine


def _status(config: Config) -> Any:
    """What the running gateway says of itself; {} where it doesn't run, or doesn't say it."""
    import httpx

    if _tls(config) is not None:
        return {}
    server = config.server
    with httpx.Client(
        transport=transport(server), base_url=base_url(server), headers=headers(server), timeout=PROBE_SECONDS
    ) as client:
        try:
            return client.get("/-/status").raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return {}


def _notes(config: Config) -> dict[str, str]:
    """What the running gateway says of its engines, by model; nothing where it doesn't run."""
    try:
        models = _status(config)["models"]
        return {model["name"]: note for model in models if (note := (model["engine"] or {}).get("note"))}
    except (LookupError, TypeError, AttributeError):
        return {}


def model_finding(config: Config, model: Model, machine: Machine, note: str | None) -> Finding:
    """note: what the running gateway says of the model's engine."""
    from gateway.engines.recipe import REPLACE_LLAMA_SERVER, recipe

    active = model.name == config.active_model
    bad: State = "wrong" if active else "note"
    about = f"model {model.name}" + (" (active)" if active else "")
    if model.runtime == "echo":
        return Finding("ok", about, "built in")
    if model.path is None and model.engine.command is None:
        return _server(model, about, bad)
    if model.path is not None and not model.path.exists():
        cure = (
            f"fetch it: ctxgate pull {model.name}" if model.pull is not None else "put the file there, or correct path:"
        )
        return Finding(bad, about, f"no weights at {model.path}", cure)
    try:
        plan = recipe(model, machine, model.port)
    except GatewayError as error:
        return Finding(bad, about, "its engine isn't installed", error.message)
    if plan.argv[0] in machine.unfit:
        return Finding(bad, about, f"{plan.argv[0]} was built for another processor: SIGILL kills it", plan.cure)
    if (finding := _weights(model, about, bad)) is not None:
        return finding
    if model.port is not None and _listens("127.0.0.1", model.port):
        return Finding("ok", about, f"a server listens on port {model.port}; the gateway uses it if it is healthy")
    if (note := note or plan.note) is not None:
        return Finding("note", about, note, REPLACE_LLAMA_SERVER)
    return Finding("ok", about, f"can be started by {plan.engine}")


def _weights(model: Model, about: str, bad: State) -> Finding | None:
    """Why an engine that the gateway starts couldn't load the files; None if it could."""
    from gateway.backends import gguf

    path, projector = model.path, model.mmproj_path
    if projector is not None and not projector.exists():
        return Finding(bad, about, f"no projector at {projector}", "put the file there, or correct mmproj_path:")
    if path is None or model.engine.command is not None:
        return None
    for key, file in model.engine.files.items():
        if not file.exists():
            return Finding(bad, about, f"there is no {file}", f"put it there, or correct {key}:")
    if model.runtime == "mlx" and not path.is_dir():
        return Finding(bad, about, f"{path} is a file", "MLX needs the model's folder: correct path:")
    if model.runtime == "faster-whisper" and not (path / "model.bin").exists():
        return Finding(bad, about, f"there is no model.bin in {path}", "name a folder of CTranslate2: correct path:")
    if model.runtime == "piper" and not path.with_name(f"{path.name}.json").exists():
        return Finding(bad, about, f"there is no {path.name}.json", f"put the voice's settings beside {path}")
    if model.runtime in GGUF_RUNTIMES:
        try:
            gguf.metadata(path, (), until="")
        except (gguf.NotGGUF, OSError) as error:
            text = f"{path} is a folder" if path.is_dir() else str(error)
            return Finding(bad, about, text, f"{model.runtime} reads GGUF files: correct path: or runtime:")
    return None


def _trained(model: Model) -> Iterator[Finding]:
    """Whether the model was trained for a window as large as the configured one."""
    from gateway.backends import gguf

    path = model.path
    if path is None or model.runtime not in GGUF_RUNTIMES or not path.is_file():
        return
    try:
        name = gguf.metadata(path, ("general.architecture",)).get("general.architecture")
        trained = gguf.metadata(path, (f"{name}.context_length",)).get(f"{name}.context_length")
    except (gguf.NotGGUF, OSError):
        return
    window = model.context_window
    stretched = model.engine.rope is not None
    if window is None or not isinstance(trained, int) or window <= trained or stretched:
        return
    text = f"context_window is {window}, but the model was trained for {trained} tokens: it may write nonsense beyond"
    yield Finding("note", f"model {model.name}", text, f"set context_window: {trained}, or stretch it with rope:")


def _history(model: Model) -> Iterator[Finding]:
    """What the gateway does with past calls and reasoning because of the model's chat template."""
    from gateway.backends.about import about
    from gateway.detection.choice import choose

    if model.path is None or not model.path.exists():
        return
    known = about(model.path)
    if known.template and (words := choose(known).history.words()):
        yield Finding("ok", f"template of {model.name}", "; ".join(words))


def _server(model: Model, about: str, bad: State) -> Finding:
    from gateway.backends import load
    from gateway.core import address_of

    try:
        load(model.runtime)
    except GatewayError as error:
        return Finding(bad, about, "its backend can't be loaded", error.message)
    address = address_of(model)
    if address is None:
        return Finding("ok", about, f"runtime {model.runtime}")
    if _reachable(address):
        return Finding("ok", about, f"its server listens at {address}")
    return Finding(bad, about, f"nothing listens at {address}", "start its server, or correct base_url: or port:")


def _reachable(address: Address) -> bool:
    if address.uds is None:
        return _listens(address.host, address.port)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PROBE_SECONDS)
        return sock.connect_ex(address.uds) == 0


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), PROBE_SECONDS):
            return True
    except OSError:
        return False


def disk(config: Config) -> Finding:
    folder = config.state_dir
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free
    text = f"{_gigabytes(free)} free at {folder}"
    if free >= SPARE_DISK:
        return Finding("ok", "disk", text)
    return Finding("wrong", "disk", text, "free some space, or move state_dir: elsewhere")


def _sandbox(config: Config) -> Finding:
    from gateway.engines.confine import version
    from gateway.engines.sandbox import describe

    if config.engines.sandbox == "off":
        return Finding("note", "sandbox", "engines have your rights", "engines: {sandbox: auto} takes them")
    holds, text = describe(version())
    return Finding("ok" if holds else "note", "sandbox", text)


def _memory(config: Config) -> Finding:
    from gateway.engines.memory import estimate, machine_budget

    active = config.models[config.active_model]
    budget = config.engines.memory_budget or machine_budget().ram
    if active.path is None or not active.path.exists():
        return Finding("ok", "memory", f"{_gigabytes(budget)} for engines")
    needed = active.residence.memory or estimate(active, on_gpu=False).ram
    text = f"{active.name} needs about {_gigabytes(needed)} of {_gigabytes(budget)} for engines"
    if needed <= budget:
        return Finding("ok", "memory", text)
    return Finding("wrong", "memory", text, "lower its context_window or parallel, or choose a smaller model")


def _gpus(config: Config) -> Iterator[Finding]:
    """What the driver says of the GPUs, beside what engines may hold of them."""
    from gateway.engines import gpu

    if not (cards := gpu.cards()):
        return
    each = (f"GPU {number}: {_gigabytes(card.total - card.used)} free" for number, card in enumerate(cards))
    budget = config.engines.gpu_memory_budget or sum(card.total for card in cards)
    yield Finding("ok", "GPU memory", f"{_gigabytes(budget)} for engines; by the driver, {', '.join(each)}")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _client_findings(contract: Contract, config: Config, model: Model) -> Iterator[Finding]:
    import httpx

    server = config.server
    with httpx.Client(
        transport=transport(server), base_url=base_url(server), headers=headers(server), timeout=ANSWER_SECONDS
    ) as client:
        for step in contract.steps:
            about = f"{step.method} {step.path}"
            try:
                yield Finding("ok", about, _step(client, step, model.name))
            except GatewayError as error:
                yield Finding("wrong", about, error.message)
            except httpx.ConnectError:
                yield Finding("wrong", about, "the gateway doesn't run", "start it: ctxgate serve")
                return
            except httpx.HTTPError as error:
                yield Finding("wrong", about, f"the connection was lost: {error or type(error).__name__}")


def _window(client: str, contract: Contract, config: Config, model: Model) -> Iterator[Finding]:
    """Whether the first request of a fresh start fits the model's window."""
    first, window = contract.first_request, model.context_window
    if not first or window is None:
        return
    text = f"{model.name} has {window} tokens; {client}'s first request needs room for {first} or more"
    if window >= contract.window:
        yield Finding("ok", "window", text)
        return
    larger = [one.name for one in config.models.values() if (one.context_window or 0) >= contract.window]
    named = f"choose {' or '.join(larger)} (--model NAME), " if larger else ""
    cure = f"{named}{'or ' if larger else ''}set context_window: {contract.window} if the model and the memory allow it"
    yield Finding("wrong" if window <= first else "note", "window", text, cure)


def _two_turns(contract: Contract, text: str, config: Config, model: Model) -> Iterator[Finding]:
    """Runs a coding agent against the gateway, which must run; nothing for other clients."""
    from gateway.features.checks.two_turns import NoTurn, two_turns

    program, about, server = contract.program, "two turns", config.server
    if program is None or not program.more:
        return
    if shutil.which(program.command) is None:
        yield Finding("note", about, f"not run: {program.command} isn't on the PATH", f"install it: {program.install}")
    elif server.https is not None:
        yield Finding("note", about, "not run: the programs don't know the gateway's certificate")
    elif server.api_keys or server.uds is not None:
        yield Finding("note", about, "not run: this command doesn't give other programs the gateway's keys or socket")
    else:
        try:
            with RunningGateway(config.source, base_url(server)) as gateway:
                turns = two_turns(program, contract.place, text, gateway)
        except NoTurn as error:
            yield Finding("note", about, str(error))
            return
        except GatewayError as error:
            yield Finding("wrong", about, error.message)
            return
        window = f" of {model.context_window}" if model.context_window is not None else ""
        yield Finding("note", "first request", f"{turns.first} tokens{window}, as {program.command} sent it")
        share = f"{turns.cached} of {turns.prompt} tokens of the second turn cached ({100 * turns.share:.0f} %)"
        yield Finding("ok" if turns.share >= LEAST_CACHED else "note", about, share)
        for place in turns.prefix:
            yield Finding("note", "prompt", printable(place))


def _step(client: httpx.Client, step: Step, model: str) -> str:
    """Makes the request and describes the answer. Raises ProviderInvalidResponse if the client could not use it."""
    body = {"model": model, **step.body} if step.body is not None else None
    answer = client.request(step.method, step.path, json=body)
    if answer.status_code != 200:
        _fail(f"status {answer.status_code}: {answer.text[:300]}")
    if step.first is not None:
        return _stream(step, answer)
    if step.has:
        found = _object(answer.text)
        for key in step.has:
            if found.get(key) is None:
                _fail(f"the answer has no {key}")
    return "as expected"


def _stream(step: Step, answer: httpx.Response) -> str:
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        _fail("the answer is not a stream of server-sent events")
    names, payloads = [], []
    for frame in answer.text.split("\n\n"):
        lines = frame.splitlines()
        names += [line[7:] for line in lines if line.startswith("event: ")]
        payloads += [line[6:] for line in lines if line.startswith("data: ")]
    if not payloads:
        _fail("the stream has no event")
    if names:
        return _ends(names[0], names[-1], step, len(names))
    if payloads.pop() != "[DONE]":
        _fail("the stream doesn't end with [DONE]")
    if not payloads:
        _fail("the stream has nothing but its end")
    first, last = _object(payloads[0]), _object(payloads[-1])
    if (error := last.get("error")) is not None:
        _fail(f"the stream ends with an error: {error.get('message') if isinstance(error, dict) else error}")
    named = next((key for key in step.last if last.get(key)), "")
    return _ends(step.first if step.first is not None and step.first in first else "", named, step, len(payloads))


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        _fail(f"not a JSON object: {text[:100]!r}")
    return found


def _ends(first: str, last: str, step: Step, count: int) -> str:
    if first != step.first or last not in step.last:
        _fail(
            f"the stream goes from {first or '?'} to {last or '?'}, not from {step.first} to {' or '.join(step.last)}"
        )
    return f"{count} events, {first} to {last}"


def _fail(message: str) -> NoReturn:
    raise ProviderInvalidResponse(message)
