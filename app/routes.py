"""HTTP routes in the process of the pages: the API, downloads by their short addresses, tiles,
uploads.
"""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from app.api import runs
from app.components import plots
from app.heatmap import routes as heatmap
from app.navigation import FIRST
from app.upload import routes as uploads


async def _to_root(request: Request) -> Response:
    """Lead the first page's own address to the root, where Streamlit has it."""
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./")


ROUTES = [
    Route(f"/{FIRST}", _to_root),
    *runs.ROUTES,
    *uploads.ROUTES,
    *plots.ROUTES,
    *heatmap.ROUTES,
]
