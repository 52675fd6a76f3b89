"""Which faults are not drawn: those that no test could notice, by rules that need no judgement."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TIMES = re.compile(r"(_SECONDS|_WITHIN)$")
_DECORATORS = {"cache", "lru_cache", "overload", "override", "final", "runtime_checkable"}
_CLASS_OPTIONS = {"slots", "gc", "kw_only"}


def equivalent(node: Any, start: tuple[int, int], operator: str) -> bool:
    """Whether one of `RULES` covers the fault that `operator` puts at `start`, in `node`."""
    leaf = node.get_leaf_for_position(start, include_prefixes=False) if hasattr(node, "children") else node
    return any(rule(leaf or node, operator) for rule in RULES)


def _annotation(leaf: Any, operator: str) -> bool:
    """Annotations and aliases of types: only mypy reads them, or msgspec, which takes no faulty one."""
    for inner, outer in _up(leaf):
        if outer.type == "annassign" and inner is outer.children[1]:
            return True
        if outer.type == "tfpdef" or (outer.type == "param" and inner is outer.annotation):
            return True
        if outer.type == "funcdef" and inner is outer.annotation:
            return True
        if outer.type == "expr_stmt" and operator.startswith("ReplaceBinaryOperator_BitOr"):
            # `Reader = JsonReader | TagReader`; constants have capitals only.
            return bool(re.match(r"_?[A-Z]+[a-z]\w*(: TypeAlias)? = ", outer.get_code().lstrip()))
    return False


def _type_checking(leaf: Any, _operator: str) -> bool:
    """`if TYPE_CHECKING:`, its body, and `@overload` functions: they never run."""
    for _, outer in _up(leaf):
        if outer.type == "if_stmt" and outer.children[1].get_code().strip().endswith("TYPE_CHECKING"):
            return True
        if outer.type == "decorated" and outer.children[0].get_code().strip() == "@overload":
            return True
    return False


def _log(leaf: Any, _operator: str) -> bool:
    """A call of `log.…` and all in it: nobody promises what a log says."""
    return any(outer.type == "atom_expr" and outer.get_code().lstrip().startswith("log.") for _, outer in _up(leaf))


def _names(leaf: Any, _operator: str) -> bool:
    """`__slots__` and `__all__`."""
    return any(
        outer.type == "expr_stmt" and outer.children[0].get_code().strip() in ("__slots__", "__all__")
        for _, outer in _up(leaf)
    )


def _class_options(leaf: Any, _operator: str) -> bool:
    """`slots=`, `gc=` and `kw_only=` of a class: speed, memory, and what mypy checks at each call."""
    return any(
        outer.type == "argument"
        and outer.children[0].type == "name"
        and outer.children[0].value in _CLASS_OPTIONS
        and any(above.type in ("classdef", "decorator") for _, above in _up(outer, 3))
        for _, outer in _up(leaf)
    )


def _decorators(leaf: Any, operator: str) -> bool:
    """Decorators for mypy alone, and memos of pure functions: the same answers, later."""
    return operator == "RemoveDecorator" and any(
        outer.type == "decorator" and (set(re.findall(r"\w+", outer.get_code())) & _DECORATORS)
        for _, outer in _up(leaf)
    )


def _times(leaf: Any, operator: str) -> bool:
    """How long a constant says to wait: `…_SECONDS`, `…_WITHIN`, and the numbers of a `Backoff`."""
    for _, outer in _up(leaf):
        if outer.type == "expr_stmt" and outer.get_code().lstrip()[:1].isupper():
            return bool(_TIMES.search(outer.children[0].get_code().strip())) or "= Backoff(" in outer.get_code()
    return False


RULES: tuple[Callable[[Any, str], bool], ...] = (
    _annotation,
    _type_checking,
    _log,
    _names,
    _class_options,
    _decorators,
    _times,
)


def _up(node: Any, maximum: int = 1000) -> list[tuple[Any, Any]]:
    """Each node above, innermost first, with the child through which it was reached."""
    found: list[tuple[Any, Any]] = []
    while node.parent is not None and len(found) < maximum:
        found.append((node, node.parent))
        node = node.parent
    return found
