"""The cost of normalising each token, and whether it grows with the length of the arguments.

Every dialect reads calls with a string of 50 B to 35 KB or a nested value of 4 KB, in pieces of 1 or 2 characters.
Markers come whole, since engines send them as one token. Each figure is CPU time divided by the number of pieces, the
least of many rounds, since other load only adds to it. `slope` divides the cost at twice the length by that at once
the length. `first` is the share of the pieces read before the first fragment of the arguments comes out. The calls
are guarded, so their arguments leave piece by piece; `held` is the cost of 2 KB in a call that is held.

    python -m benchmarks.normalizer [--rounds 40] [--peers]

`--peers` adds, in turns with ours, the parsers of SGLang and vLLM, and an `ast.parse` of the text so far for each
piece: see `normalizer_peers.py`.
"""

from __future__ import annotations

import argparse
import time

from benchmarks import normalizer_peers
from benchmarks.normalizer_calls import TOOLS, call, cost, least, nested, reader, text
from normalizers import ToolArgs, normalizer, warm

FORMATS = {
    "pythonic": "pythonic",
    "json": "hermes",
    "named": "mistral",
    "named, own quotes": "gemma4",
    "tags": "qwen3_coder",
    "tags, pairs": "glm45",
    "harmony": "harmony",
}
TURNS = 5
SIZES = {"50 B": 50, "2 KB": 2_000, "9 KB": 9_000, "35 KB": 35_000}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--peers", action="store_true")
    chosen = options.parse_args()
    values = {**{label: text(size) for label, size in SIZES.items()}, "nested 4 KB": nested(4_000)}
    inputs = {(name, label): call(name, value) for name in FORMATS.values() for label, value in values.items()}
    best = dict.fromkeys(inputs, float("inf"))
    held = dict.fromkeys(FORMATS.values(), float("inf"))
    python_call = float("inf")
    for name in FORMATS.values():
        warm(name)
    # Readers take turns over the whole run: a shared machine has slow minutes.
    for _ in range(TURNS):
        python_call = min(python_call, reference())
        for (name, label), pieces in inputs.items():
            best[name, label] = min(best[name, label], least(reader(name), pieces, chosen.rounds // TURNS))
            if label == "2 KB":
                held[name] = min(held[name], least(reader(name, guarded=False), pieces, chosen.rounds // TURNS))
    print(f"µs a piece, least of {chosen.rounds} rounds; a Python call here: {python_call * 1e9:.0f} ns\n")
    print(f"| dialect | {' | '.join(values)} | held | slope, string | slope, nested | first |")
    print("| --- |" + " --: |" * (len(values) + 4))
    for dialect, name in FORMATS.items():
        string = slope(name, text(8_000), text(16_000), chosen.rounds)
        deep = slope(name, nested(4_000), nested(8_000), chosen.rounds)
        figures = " | ".join(f"{best[name, label] * 1e6:.2f}" for label in values)
        costs = f"{figures} | {held[name] * 1e6:.2f} | {string:.2f} | {deep:.2f}"
        print(f"| {dialect} ({name}) | {costs} | {first(name):.1%} |")
    if chosen.peers:
        normalizer_peers.main(chosen.rounds)


def slope(name: str, once: object, twice: object, rounds: int) -> float:
    """The cost of a piece at twice the length, divided by that at once the length. Measured in turns."""
    read, short, long = reader(name), call(name, once), call(name, twice)
    costs = [(cost(read, short), cost(read, long)) for _ in range(rounds)]
    return min(b for _, b in costs) / min(a for a, _ in costs)


def first(name: str) -> float:
    parser = normalizer(name, TOOLS, guarded=True)
    pieces = call(name, text(2_000))
    for number, piece in enumerate(pieces):
        if any(isinstance(event, ToolArgs) for event in parser.feed(piece)):
            return number / len(pieces)
    return 1.0


def reference() -> float:
    def nothing() -> None:
        pass

    best = float("inf")
    for _ in range(20):
        begun = time.process_time()
        for _ in range(20_000):
            nothing()
        best = min(best, (time.process_time() - begun) / 20_000)
    return best


if __name__ == "__main__":
    main()
