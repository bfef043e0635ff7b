"""The table of the API: every method of every path. `app.api.openapi` describes each, and a test holds the two side by
side.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api import downloads, ingest, runs
from app.api import openapi as description
from app.api.responses import ApiOperation, Dispatcher, answer, base_url


async def openapi(request: Request) -> Response:
    """Send the description of this API, OpenAPI 3.1."""
    return answer(description.document(base_url(request)))


OPERATIONS = (
    ApiOperation("GET", "/api/openapi.json", openapi),
    ApiOperation("GET", "/api/runs", runs.list_runs),
    ApiOperation("GET", "/api/runs/{run_id}", runs.one_run),
    ApiOperation("PUT", "/api/runs/{name}", ingest.put_run),
    ApiOperation("DELETE", "/api/runs/{run_id}", runs.delete_run),
    ApiOperation("POST", "/api/runs/{run_id}/restore", runs.restore_run),
    ApiOperation("GET", "/api/runs/{run_id}/labels", runs.run_labels),
    ApiOperation("PUT", "/api/runs/{run_id}/labels", runs.put_labels),
    ApiOperation("GET", "/api/runs/{run_id}/file", downloads.run_file),
    ApiOperation("GET", "/api/runs/{run_id}/npz", downloads.run_npz),
    ApiOperation("GET", "/api/trash", runs.list_trash),
    ApiOperation("GET", "/api/ingests", ingest.list_ingests),
    ApiOperation("GET", "/api/ingests/{run_id}", ingest.one_ingest),
    ApiOperation("DELETE", "/api/ingests/{run_id}", ingest.cancel_ingest),
)


def _routes() -> list[Route]:
    """Build one route a path. Paths that differ only in what their last part is called are one: a router cannot tell
    them apart.
    """
    by_path: dict[str, dict[str, ApiOperation]] = {}
    for operation in OPERATIONS:
        methods = ("GET", "HEAD") if operation.method == "GET" else (operation.method,)
        by_path.setdefault(operation.path.replace("{name}", "{run_id}"), {}).update(dict.fromkeys(methods, operation))
    return [Route(path, Dispatcher(found)) for path, found in by_path.items()]


ROUTES = _routes()
