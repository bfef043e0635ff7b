"""HTTP routes beside the pages, in the same process: the API, downloads by their short addresses, tiles, uploads."""

from __future__ import annotations

from app.api import downloads, runs
from app.api.responses import routes_of
from app.components import vendored
from app.heatmap import routes as heatmap
from app.uploads import routes as uploads

ROUTES = [*routes_of((*runs.OPERATIONS, *downloads.OPERATIONS, *uploads.OPERATIONS)), *vendored.ROUTES, *heatmap.ROUTES]
