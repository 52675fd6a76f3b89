"""Rewrites pydantic's errors for people: place, problem, cure, allowed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_origin

from msgspec.structs import replace
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.fields import RUNTIMES
from gateway.config.file import Keys, flat
from gateway.config.problems import Problem
from gateway.config.secret import CURE as SECRET_CURE
from gateway.config.sections import file_keys
from gateway.config.source import Document, KeyPath
from gateway.config.spelling import MEANT, RENAMED
from gateway.config.values import MODEL_KEYS, Server

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}

_RELATIONS = {
    "greater_than_equal": "at least",
    "greater_than": "more than",
    "less_than_equal": "at most",
    "less_than": "less than",
}

SECRETS = ("api_key", "api_keys")
"""Keys whose values are never shown."""

_MISSING = {
    "runtime": f"add runtime: one of {', '.join(RUNTIMES)}",
    "active_model": "add active_model: the name of a model",
    "models": "add models: at least one",
}

_PATTERNS = {
    "hub": "write owner/name",
    "allow_hosts": "write host, host:port, host:* or *.domain, without a scheme",
    "package": "write name==version",
    "group": "write letters, digits and . _ -",
    "object": "write provider/model",
    "credential": "write letters, digits, - and _, a letter first: LMM stands for LMM_API_KEY and cortexfs:LMM",
    "sha256": "write 64 hexadecimal digits in lower case",
    "health_check": "write an http:// or https:// URL",
    "allowed_hosts": 'write a name, as gateway.lan, or *.domain, without a scheme and port; or "*"',
    "cors_origins": 'write scheme://host[:port], as https://app.example, or "*"',
    "providers": "write an http:// or https:// URL without a user, ? and #",
    "store": "write sqlite:///FILE or postgresql://USER:${PASSWORD}@HOST/NAME",
    "users": 'write the number of a user in quotes, as "1000"',
    "groups": "write letters, digits and . _ -",
}
"""Key → cure; for a mapping whose keys people choose, the mapping's key."""


def problems(error: ValidationError, document: Document) -> list[Problem]:
    """One for each error of pydantic; of a value that may be of several kinds, and is of none, one with all cures."""
    found: list[Problem] = []
    errors: dict[KeyPath, list[tuple[KeyPath, ErrorDetails]]] = {}
    for details in error.errors(include_url=False):
        path, value = _place(details, document.data)
        errors.setdefault(value, []).append((path, details))
    for value, kinds in errors.items():
        kinds.sort(key=lambda each: each[1]["type"] != "literal_error")
        made = [(path == value, _problem(path, details, document)) for path, details in kinds]
        if inside := [problem for whole, problem in made if not whole]:
            found += inside  # of the kind that was meant
        else:
            cures = dict.fromkeys(problem.cure for _, problem in made if problem.cure)
            found.append(replace(made[0][1], cure="; or ".join(cures)))
    return found


def _place(details: ErrorDetails, data: Any) -> tuple[KeyPath, KeyPath]:
    """Where in the file it is, and of which value: behind one that may be of several kinds, pydantic names a kind."""
    path: KeyPath = ()
    value, inner = None, data
    absent = details["loc"][-1] if details["type"] == "missing" else "[key]"
    for part in details["loc"]:
        is_there = part in inner if isinstance(inner, dict) else isinstance(inner, list) and isinstance(part, int)
        if is_there or part == absent:
            path, inner = (*path, part), inner[part] if is_there else None
        elif value is None:
            value = path
    return path, path if value is None else value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"?`, or "" if nothing is close."""
    import difflib

    known = [*known]
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    close = close or [name for name in known if len(word) > 2 and name.startswith(word.lower())]
    return f'did you mean "{close[0]}"?' if close else ""


def dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _problem(path: KeyPath, details: ErrorDetails, document: Document) -> Problem:
    kind, context = details["type"], details.get("ctx", {})
    if path[-1:] == ("[key]",):
        return _wrong_key(path[:-1], details, document)
    if kind == "extra_forbidden":
        return _unknown_key(path, document)
    field = _last_key(path)
    if kind == "missing":
        where = dotted(path[:-1]) or "the file"
        return document.at(path[:-1], f"{where} has no {field}", _MISSING.get(field, f"add {field}:"), key=True)
    shown = dotted((*path[:-1], document.renamed.get(path, path[-1]))) if path else "the file"
    if any(part in SECRETS for part in path):
        return document.at(path, f"{shown}: a secret is ${{NAME}} or keychain:NAME", SECRET_CURE)
    if kind in _KINDS:
        return _wrong_kind(path, shown, details, document)
    if kind in ("string_too_short", "too_short"):
        return document.at(path, f"{shown} is empty", "give it a value, or leave the key out")
    value = _shown(document, path, details["input"])
    if kind == "literal_error":
        allowed = _literals(str(context["expected"]))
        cure = did_you_mean(str(details["input"]), allowed)
        return document.at(path, f"{shown}: {value} isn't allowed", f"{cure} allowed: {', '.join(allowed)}".strip())
    if kind in _RELATIONS:
        bound = next(iter(context.values()))
        return document.at(path, f"{shown}: {value} is out of range", f"it must be {_RELATIONS[kind]} {bound:g}")
    if kind == "string_pattern_mismatch":
        if path == ("store",):  # it may contain a password
            return document.at(path, "store isn't of the right form", _PATTERNS["store"])
        below = "providers" if path[:2] == ("rooms", "providers") else field
        return document.at(path, f"{shown}: {value} isn't of the right form", _PATTERNS.get(below, ""))
    return document.at(path, f"{shown}: {details['msg']}", _cure(context))


def _last_key(path: KeyPath) -> str:
    return str(next((part for part in reversed(path) if isinstance(part, str)), ""))


def _wrong_key(path: KeyPath, details: ErrorDetails, document: Document) -> Problem:
    """A key that people choose, such as a model's name."""
    if details["type"] == "string_pattern_mismatch":
        message = f"{dotted(path)}: {_last_key(path)} isn't of the right form"
        return document.at(path, message, _PATTERNS.get(str(path[-2]), ""), key=True)
    return document.at(path, f"{dotted(path)}: {details['msg']}", _cure(details.get("ctx", {})), key=True)


def _unknown_key(path: KeyPath, document: Document) -> Problem:
    key = _last_key(path)
    known = sorted([*_fields(path[:-1]), *(RENAMED if path[:1] == ("models",) and len(path) == 3 else ())])
    cure = _misplaced(path) or did_you_mean(key, known) or f"known keys: {', '.join(known)}"
    where = f" in {dotted(path[:-1])}" if len(path) > 1 else ""
    return document.at(path, f"unknown key {key}{where}", cure, key=True)


def _wrong_kind(path: KeyPath, shown: str, details: ErrorDetails, document: Document) -> Problem:
    """A number for text, and the like."""
    kind, given = details["type"], details["input"]
    wanted = _KINDS[kind]
    if given is None:
        return document.at(path, f"{shown} has no value", f"write {wanted}, or leave the key out")
    cure = f"write {wanted}"
    if isinstance(given, str) and _numeric(given) and kind in ("int_type", "float_type"):
        cure = "remove the quotes"
    elif kind == "string_type" and not isinstance(given, dict | list):
        cure = f'put it in quotes: "{document.written.get(path, given)}"'
    return document.at(path, f"{shown}: {_shown(document, path, given)} isn't {wanted}", cure)


def _misplaced(path: KeyPath) -> str:
    """Cure for a key of another program, or of another section; else ""."""
    key = str(path[-1])
    if len(path) == 1:
        if key in Server.__struct_fields__:
            return "write it below server:"
        if key in MODEL_KEYS.form.model_fields:
            return "write it below a model, in models:"
    section = "file" if len(path) == 1 else "model" if path[0] == "models" and len(path) == 3 else ""
    meant = MEANT.get(section, {}).get(key)
    return f'did you mean "{meant}"?' if meant else ""


def _cure(context: dict[str, Any]) -> str:
    name, known = str(context.get("name", "")), context.get("known", ())
    meant = MEANT["runtime name"].get(name.lower()) if context.get("kind") == "runtime" else None
    guess = f'did you mean "{meant}"?' if meant else did_you_mean(name, known)
    return f"{guess} {context.get('cure', '')}".strip()


def _fields(place: KeyPath) -> Iterable[str]:
    """Keys allowed in the mapping at `place`."""
    known = file_keys().form.model_fields
    rest = iter([part for part in place if isinstance(part, str)])
    for key in rest:
        parts = [*flat(known[key].annotation)]
        known = next(part.form.model_fields for part in parts if isinstance(part, Keys))
        if any(get_origin(part) is Mapping for part in parts):
            next(rest, None)  # a key that people choose, as a model's name
    return known


def _literals(expected: str) -> list[str]:
    """The choices in pydantic's text `'a', 'b' or 'c'`."""
    return expected.split("'")[1::2]


def _shown(document: Document, path: KeyPath, given: Any) -> str:
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    written = document.written.get(path, str(given)) or "nothing"
    return written if len(written) <= 60 else written[:57] + "..."


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
