"""Models on this machine: the commands that add, fetch and remove them, and the page's and Ollama's APIs for this."""

from __future__ import annotations

from gateway.feature import Feature, Routes

FEATURE = Feature(
    name="models",
    routes=(
        Routes(
            {
                "/api/pull": {"POST": "gateway.features.models.endpoints:pull"},
                "/api/delete": {"DELETE": "gateway.features.models.endpoints:delete"},
                "/-/jobs": {
                    "GET": "gateway.features.models.manage:jobs",
                    "POST": "gateway.features.models.manage:begin",
                },
                "/-/jobs/{id}": {"DELETE": "gateway.features.models.manage:stop"},
                "/-/hub": {"GET": "gateway.features.models.manage:search"},
                "/-/hub/{repo:path}": {"GET": "gateway.features.models.manage:offer"},
                "/-/default": {"POST": "gateway.features.models.manage:make_default"},
                "/-/readings": {"GET": "gateway.features.models.manage:readings"},
                "/-/models/{name:path}/format": {"POST": "gateway.features.models.manage:set_format"},
                "/-/models/{name:path}": {"GET": "gateway.features.models.manage:model"},
            }
        ),
    ),
    commands={
        "models": (
            "gateway.features.models.commands.models:models",
            "List the models: which are installed and which run.",
        ),
        "add": (
            "gateway.features.models.commands.add:add",
            "Add a model: a file, a folder, from the hub or Ollama, or a running server.",
        ),
        "remove": (
            "gateway.features.models.commands.remove:remove",
            "Remove a model from config.yaml, and its weights if you wish.",
        ),
        "pull": ("gateway.features.models.commands.pull:pull", "Fetch a model's weights."),
    },
    openapi="gateway.features.models.openapi",
    offers={"fetch_weights": "gateway.features.models.commands.pull:fetch"},
)
