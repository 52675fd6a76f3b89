"""The part of `/openapi.json` about files and batches."""

from __future__ import annotations

from gateway.api.openapi_paths import (
    COUNT,
    FLAG,
    OBJECT,
    TEXT,
    Json,
    described,
    list_of,
    object_of,
    one_of,
    operation,
    parameter,
)
from gateway.features.batches.objects import CreateBatch

ANSWERS: dict[str, Json] = {
    "File": object_of(
        "id object bytes created_at expires_at filename purpose status", id=TEXT, object=one_of("file"), bytes=COUNT,
        created_at=COUNT, expires_at=COUNT, filename=TEXT, purpose=one_of("batch", "batch_output"),
    ),
    "FileDeleted": object_of("id object deleted", id=TEXT, object=one_of("file"), deleted=FLAG),
    "Page": object_of("object data has_more", object=one_of("list"), data=list_of(OBJECT), has_more=FLAG),
    "Batch": object_of(
        "id object endpoint input_file_id completion_window status created_at request_counts", id=TEXT,
        object=one_of("batch"), created_at=COUNT, request_counts=OBJECT,
        status=one_of(
            "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
        ),
    ),
}  # fmt: skip

_UPLOAD = object_of("file purpose", file={"type": "string", "format": "binary"}, purpose=one_of("batch"))
_FILE = (parameter("file_id"),)
_BATCH = (parameter("batch_id"),)
_AFTER = parameter("after", "query")
_ORDER = parameter("order", "query", one_of("asc", "desc"))


def _limit(maximum: int) -> Json:
    return parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": maximum})


PATHS: dict[str, Json] = {
    "/v1/files": {
        "get": operation(
            "listFiles", "The files", "Page", parameters=(parameter("purpose", "query"), _limit(10_000), _AFTER, _ORDER)
        ),
        "post": {
            **operation("uploadFile", "Upload the requests of a batch", "File"),
            "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}},
        },
    },
    "/v1/files/{file_id}": {
        "get": operation("getFile", "One file", "File", parameters=_FILE),
        "delete": operation("deleteFile", "Delete it", "FileDeleted", parameters=_FILE),
    },
    "/v1/files/{file_id}/content": {
        "get": operation(
            "getFileContent", "Its content", "Object", stream="application/octet-stream", parameters=_FILE
        )
    },
    "/v1/batches": {
        "get": operation("listBatches", "The batches", "Page", parameters=(_limit(100), _AFTER)),
        "post": operation("createBatch", "Create a batch from a file of requests", "Batch", request="CreateBatch"),
    },
    "/v1/batches/{batch_id}": {"get": operation("getBatch", "One batch", "Batch", parameters=_BATCH)},
    "/v1/batches/{batch_id}/cancel": {
        "post": operation("cancelBatch", "Cancel a batch", "Batch", parameters=_BATCH)
    },
}  # fmt: skip


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS | described({"CreateBatch": CreateBatch})
