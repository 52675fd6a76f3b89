"""The entry of a model in config.yaml, with comments that say why; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import ProviderInvalidRequest
from gateway.features.models.inventory.facts import Facts, printable

PLAIN = re.compile(r"[A-Za-z0-9_./~+][A-Za-z0-9_./~+@:-]*")


class Line:
    """A key of the entry. comment: follows it on the same line."""

    def __init__(self, key: str, value: object, comment: str = "") -> None:
        self.key, self.value, self.comment = key, value, comment


def write(name: str, above: str, lines: Sequence[Line]) -> str:
    """The entry's text without indentation: a comment, the name, and its keys."""
    texts = []
    for line in lines:
        if isinstance(line.value, Mapping):
            texts.append((f"  {line.key}:", line.comment))
            texts += [(f"    {key}: {scalar(value)}", "") for key, value in line.value.items()]
        else:
            texts.append((f"  {line.key}: {scalar(line.value)}", line.comment))
    width = max((len(text) for text, comment in texts if comment), default=0)
    body = [f"{text:<{width}}  # {printable(comment)}" if comment else text for text, comment in texts]
    return "\n".join([f"# {printable(above, 200)}", f"{scalar(name)}:", *body]) + "\n"


def scalar(value: object) -> str:
    """A value in the form in which YAML reads it back. Raises ProviderInvalidRequest if the file can't contain it."""
    import yaml

    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(key)}: {scalar(item)}' for key, item in value.items())}}}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "${" in text:
        raise ProviderInvalidRequest(f"{printable(text)}: ${{…}} means a variable in config.yaml; give it another name")
    if not isinstance(value, str) or (PLAIN.fullmatch(text) and _reads_back(text)):
        return text
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ProviderInvalidRequest(f"{printable(text)}: not valid UTF-8; give it another name")
    return yaml.safe_dump(text, default_style='"', width=float("inf")).rstrip("\n")


def _reads_back(text: str) -> bool:
    """Whether YAML reads text as this string, without quotes, as a value and in a list."""
    import yaml

    try:
        return bool(yaml.safe_load(f"a: {text}\nb: [{text}]") == {"a": text, "b": [text]})
    except yaml.YAMLError:
        return False


def name_for(written: str, taken: Mapping[str, Any]) -> str:
    """A name for clients, derived from a file, a folder or a repository: in lower case, and not taken yet."""
    stem = re.sub(r"(?i)(-00001-of-\d{5})?\.gguf$", "", written.rstrip("/").rpartition("/")[2])
    stem = re.sub(r"(?i)[-.]gguf$|\.(onnx|bin)$", "", stem)
    plain = re.sub(r"[^a-z0-9._+-]+", "-", stem.lower()).strip("-._+")[:100] or "model"
    name, number = plain, 2
    while name in taken or name == "default":
        name, number = f"{plain}-{number}", number + 1
    return name


def dialect(facts: Facts, reads_itself: bool) -> Line:
    """tool_call_format and why. reads_itself: the server parses calls."""
    found = facts.dialect
    if reads_itself:
        return Line("tool_call_format", "native_json", "the server reads the calls")
    if found is not None:
        signs = " ".join(found.evidence)
        value = found.format if facts.derived is None else facts.derived
        return Line("tool_call_format", value, f"its {found.source}: {signs}")
    why = "nothing in its files shows another format" if facts.template else "it has no chat template"
    return Line("tool_call_format", "native_json", why)


def capabilities(facts: Facts) -> Line:
    if facts.role == "embedding":
        return Line("capabilities", ["embeddings"])
    has = {
        "tool_calling": facts.dialect is not None or facts.tools,
        "vision": "vision" in facts.capabilities,
        "reasoning": "thinking" in facts.capabilities,
    }
    return Line("capabilities", ["text", *(name for name, there in has.items() if there)])
