"""HTTP routes in the process of the pages: the API, downloads by their short addresses, tiles,
uploads.
"""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from app.api import runs
from app.api.responses import RefusedError, route
from app.components import plots
from app.heatmap import routes as heatmap
from app.navigation import FIRST
from app.upload import routes as uploads
from core.text import clean


async def _to_root(request: Request) -> Response:
    """Lead the first page's own address to the root, where Streamlit has it."""
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./")


def _nothing_here(request: Request) -> Response:
    """Refuse an unknown address, for which Streamlit would send its first page."""
    raise RefusedError(f"Nothing is at {clean(request.url.path)}; see docs/reference/api.md.", 404)


ROUTES = [
    Route(f"/{FIRST}", _to_root),
    *runs.ROUTES,
    *uploads.ROUTES,
    *plots.ROUTES,
    *heatmap.ROUTES,
    *(
        Mount(place, routes=[route("GET", "/{_:path}", _nothing_here)])
        for place in ("/api", "/files")
    ),
]
