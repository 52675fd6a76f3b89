"""The tools that a room's model may call: `catalogue(config)` has them all, the room's policy says which it gets."""

from gateway.tools.base import (
    Access,
    Complete,
    ToolContext,
    ToolError,
    ToolPolicy,
    ToolRow,
)
from gateway.tools.catalogue import Catalogue, catalogue

__all__ = [
    "Access",
    "Catalogue",
    "Complete",
    "ToolContext",
    "ToolError",
    "ToolPolicy",
    "ToolRow",
    "catalogue",
]
