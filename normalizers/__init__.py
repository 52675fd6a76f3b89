"""Native tool-call dialects of local models, turned into events, whole and while they stream.

A pure library: text in, events out; the standard library and lark alone, no I/O.
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
