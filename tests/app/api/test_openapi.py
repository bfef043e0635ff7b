"""The description and the API are one: every route described, every described one there, every answer as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from starlette.testclient import TestClient

from app.api import openapi
from app.api.routes import OPERATIONS
from app.routes import ROUTES
from tests.app.api.test_taking import dump
from tests.core.runs.made_runs import copied

DOCUMENT = openapi.document("http://here")


def _is_described(method: str, path: str) -> bool:
    return method.lower() in DOCUMENT["paths"].get(path, {})


def undescribed(operations: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(method, path) for method, path in operations if not _is_described(method, path)]


def _table() -> list[tuple[str, str]]:
    return [(operation.method, operation.path.replace("{name}", "{run_id}")) for operation in OPERATIONS]


def test_every_operation_is_described_and_every_described_one_is_there() -> None:
    assert undescribed(_table()) == []
    described = {(method.upper(), path) for path, found in DOCUMENT["paths"].items() for method in found}
    of_api = {(method, path) for method, path in described if not path.startswith("/api/uploads")}
    assert of_api == set(_table())


def test_an_operation_without_a_description_would_be_seen() -> None:
    assert undescribed([("POST", "/api/runs/{run_id}/party")]) == [("POST", "/api/runs/{run_id}/party")]


def test_every_route_under_api_is_described() -> None:
    paths = {route.path for route in ROUTES if getattr(route, "path", "").startswith("/api/")}
    assert paths == set(DOCUMENT["paths"])


def test_the_document_is_sound() -> None:
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DOCUMENT)))
    assert named == set(DOCUMENT["components"]["schemas"])
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, found in DOCUMENT["paths"].items():
        for method, operation in found.items():
            asked = {part["name"] for part in operation.get("parameters", []) if part["in"] == "path"}
            assert asked == set(re.findall(r"{(\w+)}", path)), (method, path)
            assert operation["summary"]


def check(path: str, method: str, answer) -> None:
    """An answer against the schema that the description has for its status."""
    responses = DOCUMENT["paths"][path][method]["responses"]
    described = responses.get(str(answer.status_code), responses["default"])
    schema = described["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": DOCUMENT["components"]})


def test_answers_are_as_described(client: TestClient, store: Path) -> None:
    copied(store / "a-run.duckdb")
    put = client.put("/api/runs/new?wait=60", content=dump())
    assert put.status_code == 201
    check("/api/runs/{run_id}", "put", put)
    run_id = put.json()["run_id"]
    check("/api/runs/{run_id}", "put", client.put("/api/runs/new", content=b"no"))
    check("/api/runs/{run_id}", "put", client.put("/api/runs/new?wait=60", content=b"PK\x03\x04" + bytes(40)))
    for path, method, at, body in [
        ("/api/openapi.json", "get", "/api/openapi.json", None),
        ("/api/runs", "get", "/api/runs", None),
        ("/api/runs", "get", "/api/runs?limit=x", None),
        ("/api/runs/{run_id}", "get", "/api/runs/a-run?positions=1", None),
        ("/api/runs/{run_id}", "get", "/api/runs/none", None),
        ("/api/runs/{run_id}/labels", "put", "/api/runs/a-run/labels", b'{"pinned": true}'),
        ("/api/runs/{run_id}/labels", "get", "/api/runs/a-run/labels", None),
        ("/api/ingests", "get", "/api/ingests", None),
        ("/api/ingests/{run_id}", "get", f"/api/ingests/{run_id}", None),
        ("/api/ingests/{run_id}", "delete", f"/api/ingests/{run_id}", None),
        ("/api/runs/{run_id}", "delete", "/api/runs/a-run", None),
        ("/api/trash", "get", "/api/trash", None),
        ("/api/runs/{run_id}/restore", "post", "/api/runs/a-run/restore", None),
        ("/api/runs/{run_id}/restore", "post", "/api/runs/a-run/restore", None),
    ]:
        check(path, method, client.request(method.upper(), at, content=body))


def test_an_answer_that_is_not_as_described_would_be_seen(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "app.api.runs._trash", lambda: __import__("app.api.responses", fromlist=["answer"]).answer({"gone": []})
    )
    with pytest.raises(jsonschema.ValidationError):
        check("/api/trash", "get", client.get("/api/trash"))


def test_a_run_of_operations_is_told_too(client: TestClient, store: Path) -> None:
    from core.runs.ops_run import write_ops_run
    from core.runs.store.store import Store
    from tests.core.runs.test_ops_run import header, row_of

    run_id = write_ops_run(Store(store), header(), (row_of(),))
    answer = client.get(f"/api/runs/{run_id}")
    assert answer.status_code == 200, answer.text
    check("/api/runs/{run_id}", "get", answer)
    assert len(answer.json()["rows"]) == 1
