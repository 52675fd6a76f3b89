"""`/v1/files` and `/v1/batches`."""

from __future__ import annotations

from gateway.feature import Background, Feature, Routes

ROUTES = Routes({
    "[/v1]/files[/]": {
        "GET": "gateway.features.batches.endpoints:files", "POST": "gateway.features.batches.endpoints:upload",
    },
    "[/v1]/files/{id}": {
        "GET": "gateway.features.batches.endpoints:file", "DELETE": "gateway.features.batches.endpoints:delete",
    },
    "[/v1]/files/{id}/content": {"GET": "gateway.features.batches.endpoints:content"},
    "[/v1]/batches[/]": {
        "GET": "gateway.features.batches.endpoints:batches", "POST": "gateway.features.batches.endpoints:create",
    },
    "[/v1]/batches/{id}": {"GET": "gateway.features.batches.endpoints:batch"},
    "[/v1]/batches/{id}/cancel": {"POST": "gateway.features.batches.endpoints:cancel"},
}, finishes=True)  # fmt: skip

FEATURE = Feature(
    name="batches",
    sections={"batches": "gateway.features.batches.settings:Batches"},
    at_start=("batches",),
    routes=(ROUTES,),
    commands={"batch": ("gateway.features.batches.commands.batch:batch", "List batches, and watch one.")},
    # Resumes batches that had work left when the gateway ended.
    background=(
        Background(
            "gateway.features.batches.runner:resume",
            lambda config: "cluster" in config.sections or (config.state_dir / "batches.open").exists(),
        ),
    ),
    prunes=("gateway.features.batches.batch_store:prune",),
    migrations="gateway.features.batches.migrations",
    openapi="gateway.features.batches.openapi",
)
