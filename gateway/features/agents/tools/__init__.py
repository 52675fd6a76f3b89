"""Tools that a model may call: `catalogue(settings)` has them all, a policy selects among them."""

from gateway.features.agents.tools.base import (
    Access,
    Complete,
    Cost,
    Effect,
    Mount,
    Source,
    Tool,
    ToolContext,
    ToolError,
    ToolPolicy,
)
from gateway.features.agents.tools.catalogue import Catalogue, Toolbox, catalogue

__all__ = [
    "Access",
    "Catalogue",
    "Complete",
    "Cost",
    "Effect",
    "Mount",
    "Source",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolPolicy",
    "Toolbox",
    "catalogue",
]
