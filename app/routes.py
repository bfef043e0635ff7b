"""HTTP routes beside the pages, in the same process: downloads by their short addresses, tiles, uploads, the API."""

from __future__ import annotations

from starlette.routing import Route

from app import plots, tiles
from app.api import files
from app.api import routes as api
from app.uploads import routes as uploads

ROUTES = [
    Route("/files/{run_id}.duckdb", files.run_file),
    Route("/files/{run_id}.npz", files.run_npz),
    *plots.ROUTES,
    *tiles.ROUTES,
    *uploads.ROUTES,
    *api.ROUTES,
]
