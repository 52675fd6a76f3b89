"""Names that the file, and requests, may use."""

from __future__ import annotations

from typing import Literal

DEFAULT = "default"
"""The model name that means `active_model`, in requests."""

PLACEHOLDERS = ("model_path", "model_name", "mmproj_path", "host", "port", "context_window", "threads", "parallel")
"""Names that `args` may have in braces."""

Role = Literal["chat", "embedding", "rerank", "transcription", "speech", "image", "video", "infill"]
