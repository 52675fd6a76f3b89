"""The kinds of faults: cosmic-ray's operators, and some of our own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import cosmic_ray.plugins
import parso
from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Keyword, Name

Position = tuple[tuple[int, int], tuple[int, int]]

# Whether equal constants are one object is the interpreter's affair.
_COMPARISONS = {("Eq", "Is"), ("Eq", "IsNot"), ("NotEq", "Is"), ("NotEq", "IsNot")}


class RemoveStatement(Operator):
    """Puts `pass` in place of a call, a raise, a bare return, a del, or an assignment to an attribute or an item.

    Assignments to names, and those of `__init__`, stay: anything that runs would notice, so they prove nothing.
    """

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "simple_stmt" and _has_effect(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        old = node.children[0]
        node.children[0] = Keyword("pass", old.start_pos, old.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("self.x = 1", "pass"), Example("f(x)", "pass"), Example("raise OSError", "pass"))


class SwapMembership(Operator):
    """`in` becomes `not in`, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "comparison":
            for child in node.children[1::2]:
                if _words(child) in ("in", "not in"):
                    yield child.start_pos, child.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        places = [i for i, child in enumerate(node.children) if i % 2 and _words(child) in ("in", "not in")]
        swapped = " in" if _words(node.children[places[index]]) == "not in" else " not in"
        node.children[places[index]] = parso.parse(swapped)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("x in y", "x not in y"), Example("x not in y", "x in y"))


class ReturnNone(Operator):
    """A function that may return None does so: `return value` becomes `return None` in an `X | None` function."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "return_stmt" and node.children[1].get_code().strip() != "None":
            function = parso.python.tree.search_ancestor(node, "funcdef")
            if function is not None and function.annotation and "None" in function.annotation.get_code():
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.children[1] = Keyword("None", node.children[1].start_pos, " ")
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("def f() -> int | None: return 1", "def f() -> int | None: return None"),)


class ExceptionReplacer(Operator):
    """An exception is no longer caught. cosmic-ray's own operator fails on dotted names."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "except_clause":
            for parent, at in _caught(node):
                yield parent.children[at].start_pos, parent.children[at].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        parent, at = list(_caught(node))[index]
        old = parent.children[at]
        parent.children[at] = Name("CosmicRayTestingException", old.start_pos, old.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("try: pass\nexcept a.b: pass", "try: pass\nexcept CosmicRayTestingException: pass"),)


OURS = {operator.__name__: operator for operator in (ExceptionReplacer, RemoveStatement, SwapMembership, ReturnNone)}

# The nodes of parso that each family reads: to ask all 240 operators about each node would take a minute.
NODES: dict[str, tuple[str, ...]] = {
    "AddNot": ("if_stmt", "while_stmt", "assert_stmt", "test"),
    "ExceptionReplacer": ("except_clause",),
    "NumberReplacer": ("number",),
    "RemoveDecorator": ("decorator",),
    "RemoveStatement": ("simple_stmt",),
    "ReplaceAndWithOr": ("keyword",),
    "ReplaceBinaryOperator": ("operator",),
    "ReplaceBreakWithContinue": ("keyword",),
    "ReplaceComparisonOperator": ("comparison",),
    "ReplaceContinueWithBreak": ("keyword",),
    "ReplaceFalseWithTrue": ("keyword",),
    "ReplaceOrWithAnd": ("keyword",),
    "ReplaceTrueWithFalse": ("keyword",),
    "ReplaceUnaryOperator": ("factor", "not_test"),
    "ReturnNone": ("return_stmt",),
    "SwapMembership": ("comparison",),
    "ZeroIterationForLoop": ("for_stmt",),
}

_BINARY = {"expr", "xor_expr", "and_expr", "shift_expr", "arith_expr", "term", "power"}


def can_change(family: str, node: Any) -> bool:
    """Whether the fault is still Python: cosmic-ray takes the stars of parameters and displays for operators, too."""
    return bool(family != "ReplaceBinaryOperator" or node.parent.type in _BINARY)


def _words(node: Any) -> str:
    return " ".join(node.get_code().split())


def _caught(clause: Any) -> Iterator[tuple[Any, int]]:
    """Each exception of an `except`, as its parent node and its place there."""
    one = clause.children[1]
    if one.type != "atom":
        yield clause, 1
    elif one.children[1].type == "testlist_comp":
        yield from ((one.children[1], at) for at in range(0, len(one.children[1].children), 2))
    else:
        yield one, 1


def _has_effect(statement: Any) -> bool:
    kind = statement.type
    if kind == "expr_stmt":
        function = parso.python.tree.search_ancestor(statement, "funcdef")
        if function is None or function.name.value == "__init__":
            return False
        if statement.children[1].type == "operator" and statement.children[1].value == "=":
            return bool(all(target.type == "atom_expr" for target in statement.children[:-1:2]))
        return bool(statement.children[1].type != "annassign")  # `+=` and its like
    if kind == "keyword":
        return bool(statement.value in ("return", "raise"))
    if kind in ("atom_expr", "await"):
        return True
    return kind in ("raise_stmt", "del_stmt")


@cache
def operators() -> dict[str, Operator]:
    """All that are used, by name; the part before the first `_` is the family."""
    found = {name: operator() for name, operator in OURS.items()}
    for name in cosmic_ray.plugins.operator_names():
        operator, short = cosmic_ray.plugins.get_operator(name), name.partition("/")[2]
        family, _, rest = short.partition("_")
        change = tuple(rest.split("_"))
        if short in OURS or operator.arguments() or (family == "ReplaceComparisonOperator" and change in _COMPARISONS):
            continue
        if family == "ReplaceComparisonOperator" and change[0].startswith("Is") and not change[1].startswith("Is"):
            continue  # `<` between what is compared by identity fails at any call, and `==` says the same
        found[short] = operator()
    return found
