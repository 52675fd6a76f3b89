"""What each package may import: the rows by which test_boundaries checks the code."""

from __future__ import annotations

# The packages of ours that each one may import, itself aside. "gateway" alone is its `__init__`: the version.
OURS: dict[str, set[str]] = {
    "normalizers": set(),
    "gateway": set(),
    "gateway.errors": set(),
    "gateway.upstream": {"gateway.errors"},
    "gateway.wire": {"gateway.errors"},
    "gateway.feature": {"gateway.wire"},
    "gateway.schema": {"gateway.errors", "gateway.observe", "normalizers"},
    "gateway.config": {"gateway.errors", "gateway.feature", "normalizers"},
    "gateway.provider": {"gateway.errors", "gateway.schema", "gateway.wire", "gateway.config"},
    "gateway.server": {"gateway.errors", "gateway.core", "gateway.observe", "gateway.services", "gateway.wire"},
    "gateway.store": {"gateway.errors", "gateway.config", "gateway.feature", "gateway.observe"},
    "gateway.line": {"gateway.errors", "gateway.observe", "gateway.wire"},
    "gateway.prompts": {"gateway.errors", "gateway.config", "gateway.feature", "gateway.line"},
    "gateway.backends": {"gateway.errors", "gateway.wire", "gateway.upstream", "gateway.config", "gateway.prompts"},
    "gateway.detection": {"gateway.backends", "gateway.config", "gateway.schema", "normalizers"},
    "gateway.engines": {
        *("gateway.errors", "gateway.upstream", "gateway.config", "gateway.backends", "gateway.prompts"),
        *("gateway.wire", "gateway.observe", "gateway.feature", "gateway.line"),
    },
    "gateway.request": {"gateway.errors", "gateway.wire", "gateway.schema", "normalizers"},
    "gateway.answer": {"gateway.errors", "gateway.wire", "normalizers"},
    "gateway.observe": {"gateway", "gateway.errors", "gateway.wire", "gateway.config", "gateway.answer"},
    "gateway.core": {
        *("gateway.errors", "gateway.wire", "gateway.config", "gateway.backends", "gateway.engines"),
        *("gateway.upstream", "gateway.prompts", "gateway.request", "gateway.answer", "gateway.observe"),
        *("gateway.detection", "gateway.feature", "gateway.line", "gateway.schema", "normalizers"),
    },
    "gateway.services": {
        *("gateway.errors", "gateway.config", "gateway.core", "gateway.feature", "gateway.observe", "gateway.store"),
    },
    "gateway.api": {
        *("gateway", "gateway.errors", "gateway.server", "gateway.wire", "gateway.config", "gateway.core"),
        *("gateway.engines", "gateway.observe", "gateway.request", "gateway.services", "gateway.feature"),
    },
    "gateway.app": {
        *("gateway.config", "gateway.core", "gateway.api", "gateway.services", "gateway.server", "gateway.observe"),
        *("gateway.feature", "normalizers"),
    },
    "gateway.cli": {
        *("gateway", "gateway.errors", "gateway.config", "gateway.app", "gateway.feature", "gateway.server"),
        "gateway.wire",
        "gateway.observe",
    },
    "gateway.__main__": {"gateway.cli"},
    "gateway.features": set(),
}

# The features that each feature may import besides: all of the above. Nothing above may import a feature.
FEATURES: dict[str, set[str]] = {
    "messages": set(),
    "completions": set(),
    "vectors": set(),
    "ollama": {"vectors"},
    "responses": set(),
    "media": set(),
    "clients": set(),
    "operations": set(),
    "keys": set(),
    "share": set(),
    "traces": set(),
    "descriptions": set(),
    "checks": {"clients"},
    "agents": {"responses"},
    "rooms": {"agents"},
    "ctx": {"agents", "media", "rooms", "vectors"},
    "batches": {"media"},
    "evaluation": set(),
    "models": {"evaluation", "ollama", "operations"},
    "cluster": {"keys", "models"},
    "service": set(),
    "page": {"clients"},
}

# Packages of others. Where a part isn't named it may import none.
THEIRS: dict[str, set[str]] = {
    "gateway.wire": {"msgspec"},
    "gateway.schema": {"jsonschema", "referencing"},
    "gateway.upstream": {"httptools"},
    "gateway.config": {"keyring", "msgspec", "platformdirs", "pydantic", "pydantic_core", "yaml"},
    "gateway.provider": {"httpx", "opentelemetry", "pydantic"},
    "gateway.prompts": {"msgspec"},
    "gateway.backends": {"msgspec"},
    "gateway.detection": {"jinja2", "msgspec", "yaml"},
    "gateway.request": {"msgspec"},
    "gateway.answer": {"msgspec"},
    "gateway.observe": {"msgspec"},
    "gateway.engines": {
        *("llguidance", "mlx", "mlx_lm", "msgspec", "numpy", "psutil", "xllamacpp"),
    },
    "gateway.core": {"msgspec"},
    "gateway.server": {"httptools", "msgspec", "starlette", "uvicorn", "websockets"},
    "gateway.store": {"alembic", "sqlalchemy"},
    "gateway.api": {"msgspec", "starlette", "uvicorn"},
    "gateway.app": {"uvicorn"},
    "gateway.cli": {"click", "httpx", "msgspec", "psutil", "rich"},
    "gateway.features.messages": {"msgspec"},
    "gateway.features.ollama": {"msgspec", "starlette"},
    "gateway.features.responses": {"alembic", "msgspec", "sqlalchemy"},
    "gateway.features.operations": {
        *("click", "httpx", "msgspec", "alembic", "prometheus_client", "rich", "sqlalchemy", "starlette", "uvicorn"),
    },
    "gateway.features.clients": {"click", "httpx", "msgspec", "psutil"},
    "gateway.features.checks": {"click", "httpx", "msgspec", "packaging", "rich"},
    "gateway.features.agents": {
        *("anyio", "bs4", "click", "fsspec", "httpx", "markdownify", "msgspec", "pydantic", "sqlalchemy"),
        *("alembic", "httpx2", "mcp", "mcp_types"),
    },
    "gateway.features.rooms": {"alembic", "click", "cryptography", "httpx", "keyring", "msgspec", "sqlalchemy"},
    "gateway.features.ctx": {"alembic", "click", "httpx", "msgspec", "pydantic", "sqlalchemy"},
    "gateway.features.batches": {
        *("alembic", "click", "msgspec", "pydantic", "rich", "sqlalchemy", "starlette"),
    },
    "gateway.features.media": {"av", "faster_whisper", "msgspec", "numpy", "piper", "python_multipart"},
    "gateway.features.completions": {"msgspec"},
    "gateway.features.vectors": {"msgspec"},
    "gateway.features.keys": {"click", "msgspec"},
    "gateway.features.share": {"fsspec", "msgspec"},
    "gateway.features.traces": {"msgspec", "opentelemetry"},
    "gateway.features.descriptions": {"starlette"},
    "gateway.features.evaluation": {"click", "httpx", "matplotlib", "msgspec", "rich", "yaml"},
    "gateway.features.models": {
        *("click", "httpx", "huggingface_hub", "msgspec", "rich", "starlette", "yaml"),
    },
    "gateway.features.cluster": {
        *("alembic", "click", "httpx", "msgspec", "psutil", "psycopg", "pydantic", "ray", "sqlalchemy"),
    },
    "gateway.features.service": {"click", "httpx", "msgspec"},
    "gateway.features.page": {"starlette"},
}
