"""Reads the tool calls that local models write as text, whole or while it streams.

A pure library: text in, events out. It does no I/O and needs the standard library alone.
"""

from normalizers.base import Normalizer
from normalizers.detect import Detection, detect
from normalizers.events import (
    Event,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolArgs,
    ToolCall,
    ToolEnd,
    ToolStart,
    Warn,
    coalesce,
    fold,
)
from normalizers.registry import UnknownFormat, get, names, normalizer, warm
from normalizers.spec import FormatSpec

__all__ = [
    "Detection",
    "Event",
    "FormatSpec",
    "Message",
    "Normalizer",
    "ReasoningDelta",
    "TextDelta",
    "ToolArgs",
    "ToolCall",
    "ToolEnd",
    "ToolStart",
    "UnknownFormat",
    "Warn",
    "coalesce",
    "detect",
    "fold",
    "get",
    "names",
    "normalizer",
    "warm",
]
