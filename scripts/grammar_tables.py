"""Writes the LALR tables of normalizers/read/*.lark beside them, as Lark builds them.

python -m scripts.grammar_tables      after a grammar was edited
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from lark import Lark

GRAMMARS: Final = tuple(sorted((Path(__file__).parents[1] / "normalizers" / "read").glob("*.lark")))


def place(grammar: Path) -> Path:
    return grammar.with_suffix(".tables.json")


def tables(grammar: str) -> str:
    """What `normalizers.read.push.Tables.read` takes: a row for each state, in the order in which they are met from the
    start, so that the same grammar gives the same text whatever numbers Lark chose."""
    parser = Lark(grammar, parser="lalr", maybe_placeholders=False).parse_interactive().parser_state.parse_conf
    met: list[int] = [parser.start_state]
    numbers = {parser.start_state: 0}
    rows = []
    for state in met:  # grows on the way
        row: dict[str, int | tuple[int, str]] = {}
        for symbol, (_, to) in sorted(parser.states[state].items()):
            if not isinstance(to, int):
                row[symbol] = len(to.expansion), str(to.origin.name)
                continue
            if to not in numbers:
                numbers[to] = len(met)
                met.append(to)
            row[symbol] = numbers[to]
        rows.append(json.dumps(row))
    return "[\n" + ",\n".join(rows) + "\n]\n"


def main() -> None:
    for grammar in GRAMMARS:
        place(grammar).write_text(tables(grammar.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
