"""Tools that a model may call: `catalogue(settings)` has them all, a policy selects among them."""

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
