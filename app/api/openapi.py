"""OpenAPI 3.1 description of the API. A test holds it beside the table of routes and beside real answers."""

from __future__ import annotations

from typing import Any

from app.gallery import SORTS, filters
from app.shell import wording
from app.uploads import tus as uploads

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_YES: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "description": "ISO 8601, UTC"}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, *, is_open: bool = False) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": is_open,
    }


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_LABELS = {"tags": _list(_TEXT), "note": _TEXT, "pinned": _YES, "judged_as": _TEXT}
_SCHEMAS: dict[str, Schema] = {
    "Error": _object({"error": {"type": "string", "description": "one sentence"}}, is_open=True),
    "Labels": _object(_LABELS),
    "LabelsOfRun": _object({"run_id": _TEXT, **_LABELS}, {"put_aside": _TEXT}),
    "Card": _object(
        {
            "run_id": _TEXT,
            "name": _TEXT,
            "created": _TIME,
            "kind": {"enum": ["capture", "upload", "ops", "sparse"]},
            "model": _TEXT,
            "compute_dtype": _TEXT,
            "device": _TEXT,
            "prompts": _WHOLE,
            "positions": _WHOLE,
            "vocab": _WHOLE,
            "pairs": _WHOLE,
            "bit_identical_pairs": _WHOLE,
            "flips": _WHOLE,
            "max_ulps": _WHOLE,
            "max_row_ulps": _or_null(_NUMBER),
            "rms_row_ulps": _or_null(_NUMBER),
            "noise_ratio": _or_null(_NUMBER),
            "max_neq_share": _or_null(_NUMBER),
            "nonfinite_mismatch": _WHOLE,
            "verdicts": _TEXT,
            "pair_verdicts": _list(_TEXT),
            "sides": _list(_TEXT),
            "bytes": _WHOLE,
            "is_read_only": _YES,
            "kept": {"enum": ["all", "figures"]},
            "labels": _ref("Labels"),
            "url": _TEXT,
        }
    ),
    "Runs": _object({"runs": _list(_ref("Card")), "total": _WHOLE, "broken": _list(_TEXT)}),
    "Run": _object(
        {"run_id": _TEXT, "name": _TEXT, "created": _or_null(_TIME), "labels": _ref("Labels"), "url": _TEXT},
        {
            "kind": {"enum": ["capture", "upload", "ops", "sparse"]},
            "sides": _list({"type": "object"}),
            "summary": {"type": "object"},
            "by_position": _list({"type": "object"}),
        },
        is_open=True,
    ),
    "Ingest": _object(
        {
            "run_id": {"type": "string", "description": "the id that the run has, or is going to have"},
            "name": _TEXT,
            "state": {"enum": ["waiting", "running", "cancelling", "done", "failed", "cancelled"]},
            "stage": _TEXT,
            "rows_done": _WHOLE,
            "rows_total": _WHOLE,
            "seconds": _NUMBER,
            "message": {"type": "string", "description": "why it failed, one sentence"},
            "job": {"type": "string", "description": "where to ask again"},
            "url": {"type": "string", "description": "the run's link"},
        }
    ),
    "Ingests": _object({"ingests": _list(_ref("Ingest"))}),
    "FailedIngest": {"allOf": [{"$ref": "#/components/schemas/Error"}]},
    "Deleted": _object({"run_id": _TEXT, "deleted": _TEXT}, {"entry": _TEXT, "kept_days": _WHOLE, "restore": _TEXT}),
    "Restored": _object({"run_id": _TEXT, "url": _TEXT}),
    "Trash": _object(
        {"deleted": _list(_object({"run_id": _TEXT, "name": _TEXT, "deleted": _TIME, "bytes": _WHOLE, "entry": _TEXT}))}
    ),
    "Uploads": _object({"uploads": _list({"type": "object"})}),
}


def _query(name: str, schema: Schema, says: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": says}


def _part(name: str, says: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT, "description": says}


def _json(name: str, says: str) -> dict[str, Any]:
    return {"description": says, "content": {"application/json": {"schema": _ref(name)}}}


_FILE = {"schema": {"type": "string", "format": "binary"}}
_BYTES = {"application/octet-stream": _FILE}
_RUN = _part("run_id", "id of a run; to read, a unique beginning of it will do")
_WAIT = _query("wait", {"type": "integer", "minimum": 0, "maximum": 600}, "seconds to wait for the end")
_FILTERS = [
    _query("search", _TEXT, "words that name, model, sides, prompts, tags or note have, all of them"),
    _query("dtype", {"enum": ["any", "bfloat16", "float16", "float32"]}, "compute dtype"),
    _query("device", _TEXT, "cpu, cuda, ..."),
    _query("verdict", {"enum": ["any", *wording.VERDICTS]}, "of any of its pairs"),
    _query("flips", {"enum": list(filters.FLIPS)}, "whether an argmax differs anywhere"),
    {**_query("tag", _list(_TEXT), "given several times: all of them"), "explode": True},
    _query("sort", {"enum": list(SORTS)}, "as in the gallery"),
    _query("limit", {"type": "integer", "minimum": 0, "maximum": 1000, "default": 100}, "runs in the answer"),
    _query("offset", {"type": "integer", "minimum": 0, "default": 0}, "runs to leave out before"),
]
_TAKEN = {
    "201": _json("Ingest", "waited for, and it is a run; Location is the run's"),
    "202": _json("Ingest", "being taken in; Location says where to ask"),
    "400": _json("Error", "a parameter means nothing"),
    "412": _json("Error", "If-None-Match: *, and a run of that name is there"),
    "413": _json("Error", "larger than the server takes a file"),
    "415": _json("Error", "neither a dump nor a run file, by its first bytes"),
    "422": _json("FailedIngest", "waited for, and it was refused; or the body is not what its digest says"),
    "503": _json("Error", "too many files are waiting"),
    "507": _json("Error", "no room"),
}
_TAKE_QUERY = [
    _query("name", _TEXT, "the run's name, where it cannot be a part of an address"),
    _query("upload", _TEXT, "id of an upload of /api/uploads that has arrived whole, in place of a body"),
    _query("model", _TEXT, "of a dump: the model the logits come from"),
    _query(
        "compute_dtype",
        {"enum": ["bfloat16", "float16", "float32"]},
        "of a dump: what ULPs are counted in, if not what is found",
    ),
    _query("reference", _TEXT, "of a dump: the side the others are compared with"),
    _query(
        "holds",
        {"enum": ["logits", "padded"]},
        "of a dump: logits that look like log-probabilities of chosen tokens, or sides whose last tokens are padding",
    ),
    _WAIT,
    {
        "name": "If-None-Match",
        "in": "header",
        "required": False,
        "schema": {"const": "*"},
        "description": "only if no run has this name",
    },
    {
        "name": "Repr-Digest",
        "in": "header",
        "required": False,
        "schema": _TEXT,
        "description": "sha-256=:BASE64: of the body (RFC 9530), which is then compared",
    },
]


def _operation(summary: str, responses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "summary": summary,
        **more,
        "responses": {**responses, "default": _json("Error", "anything else, in a sentence")},
    }


def _download(summary: str, kind: str = "application/octet-stream") -> dict[str, Any]:
    return _operation(
        summary,
        {
            "200": {"description": "all of it; with an ETag", "content": {kind: _FILE}},
            "206": {"description": "the range asked for", "content": {kind: _FILE}},
            "304": {"description": "If-None-Match names the ETag"},
            "404": _json("Error", "no such run"),
            "416": {"description": "no such range"},
        },
        parameters=[_RUN],
    )


_GONE = {"404": _json("Error", "no such run")}
_OBJECT = {"required": True, "content": {"application/json": {"schema": {**_object({}, _LABELS)}}}}
_PATHS: dict[str, dict[str, Any]] = {
    "/api/openapi.json": {
        "get": _operation(
            "this description",
            {"200": {"description": "OpenAPI 3.1", "content": {"application/json": {"schema": {"type": "object"}}}}},
        )
    },
    "/api/runs": {
        "get": _operation(
            "the runs that match, in order", {"200": _json("Runs", "runs and how many match")}, parameters=_FILTERS
        )
    },
    "/api/runs/{run_id}": {
        "get": _operation(
            "a run's figures, as `ulpscope show --json` prints them",
            {"200": _json("Run", "figures"), **_GONE},
            parameters=[_RUN, _query("positions", {"enum": ["0", "1"]}, "1: figures of every position")],
        ),
        "put": _operation(
            "a dump or a run file becomes a run",
            _TAKEN,
            parameters=[_part("run_id", "the name of the new run"), *_TAKE_QUERY],
            requestBody={"required": False, "content": _BYTES},
        ),
        "delete": _operation(
            "into the trash, for a week",
            {"200": _json("Deleted", "gone"), **_GONE, "409": _json("Error", "a sample run")},
            parameters=[_RUN, _query("for_good", {"enum": ["0", "1"]}, "1: at once and for good")],
        ),
    },
    "/api/runs/{run_id}/restore": {
        "post": _operation("out of the trash", {"200": _json("Restored", "back"), **_GONE}, parameters=[_RUN])
    },
    "/api/runs/{run_id}/labels": {
        "get": _operation("tags, note and pin", {"200": _json("LabelsOfRun", "labels"), **_GONE}, parameters=[_RUN]),
        "put": _operation(
            "replace them; what is left out stays",
            {"200": _json("LabelsOfRun", "as they are now"), **_GONE},
            parameters=[_RUN],
            requestBody=_OBJECT,
        ),
    },
    "/api/runs/{run_id}/file": {"get": _download("the run file")},
    "/api/runs/{run_id}/npz": {"get": _download("every side as it came in, as numpy reads it", "application/zip")},
    "/api/trash": {"get": _operation("what was deleted within a week", {"200": _json("Trash", "the latest first")})},
    "/api/ingests": {
        "get": _operation(
            "files that are being taken in, or were within a day", {"200": _json("Ingests", "the newest first")}
        )
    },
    "/api/ingests/{run_id}": {
        "get": _operation(
            "how one is getting on",
            {"200": _json("Ingest", "state, progress, outcome"), **_GONE},
            parameters=[_part("run_id", "id of the run it becomes"), _WAIT],
        ),
        "delete": _operation(
            "stop it",
            {"200": _json("Ingest", "as it stands"), "409": _json("Error", "another process takes it in"), **_GONE},
            parameters=[_part("run_id", "id of the run it becomes")],
        ),
    },
}
_DONE = {"description": "done; the headers say it in tus' words"}
_UPLOAD = _part("upload_id", "id of an upload")
_OF_UPLOADS: dict[str, dict[str, Any]] = {
    uploads.ADDRESS: {
        "options": _operation("what tus 1.0.0 can do here", {"204": _DONE}),
        "get": _operation("one's own uploads that are not saved yet", {"200": _json("Uploads", "the oldest first")}),
        "post": _operation(
            "announce a file of Upload-Length bytes",
            {"201": _DONE, "413": _json("Error", "too large"), "507": _json("Error", "no room")},
        ),
    },
    f"{uploads.ADDRESS}/{{upload_id}}": {
        "head": _operation("how much has arrived", {"200": _DONE}, parameters=[_UPLOAD]),
        "get": _operation(
            "the same as JSON",
            {"200": {"description": "as in the list", "content": {"application/json": {"schema": {"type": "object"}}}}},
            parameters=[_UPLOAD],
        ),
        "patch": _operation(
            "a piece at Upload-Offset",
            {"204": _DONE, "409": _json("Error", "another offset is next")},
            parameters=[_UPLOAD],
            requestBody={"content": _BYTES},
        ),
        "delete": _operation("give it up", {"204": _DONE}, parameters=[_UPLOAD]),
    },
}


def document(base: str) -> dict[str, Any]:
    """OpenAPI document of the API; `base`: the address of this server."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ULPscope",
            "version": "1",
            "description": "Runs of logits: taken in, listed, told, downloaded, deleted. docs/api.md.",
        },
        "servers": [{"url": base}],
        "security": [{}, {"token": []}],
        "paths": {**_PATHS, **_OF_UPLOADS},
        "components": {"schemas": _SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
