"""What a model can do, as Anthropic's API tells it."""

from __future__ import annotations

from typing import Any

from gateway.config import Model

EFFORTS = ("low", "medium", "high", "xhigh", "max")


def told(model: Model) -> dict[str, Any]:
    """The fields of a model that Anthropic's clients read. What config.yaml doesn't tell counts as unsupported."""
    chats = "chat" in model.roles
    sees = "vision" in model.capabilities or model.mmproj_path is not None or model.describe_with is not None
    thinks = _support("reasoning" in model.capabilities)
    answered = _support(chats)
    capabilities = {
        **dict.fromkeys(("batch", "citations", "code_execution", "context_management", "pdf_input"), _support(False)),
        "effort": {**thinks, **dict.fromkeys(EFFORTS, thinks)},
        "image_input": _support(chats and sees),
        "server_tools": {**_support(False), **dict.fromkeys(("code_execution", "web_search"), _support(False))},
        "structured_outputs": _support(chats and model.runtime != "echo"),
        # Whatever a request says about it, no model refuses one.
        "thinking": {
            **thinks,
            "types": {"adaptive": thinks, "between_tools": answered, "disabled": answered, "enabled": thinks},
        },
    }
    limits = {} if (window := model.context_window) is None else {"max_input_tokens": window, "max_tokens": window}
    return {"capabilities": capabilities, "lifecycle": "active", **limits}


def _support(supported: bool) -> dict[str, Any]:
    return {"supported": supported}
