"""HTTP routes beside the pages, in the same process: downloads by their short addresses, tiles, uploads, the API."""

from __future__ import annotations

from starlette.routing import Route

from app.api import downloads
from app.api import routes as api
from app.components import vendored
from app.heatmap import routes
from app.uploads import tus as uploads

ROUTES = [
    Route("/files/{run_id}.duckdb", downloads.run_file),
    Route("/files/{run_id}.npz", downloads.run_npz),
    *vendored.ROUTES,
    *routes.ROUTES,
    *uploads.ROUTES,
    *api.ROUTES,
]
