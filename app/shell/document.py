"""The one document of all pages: Streamlit's index.html, told where the server is, and keeping keys that are pressed
early.

Before it opens its websocket Streamlit asks for the server's health and configuration: for a page below the root at the
page's own address first, where there is no server, then after a pause of 0.1 s at the root. `window.__streamlit`, by
which a host tells the page where its server is (`BACKEND_BASE_URL`) and which sites it takes messages from
(`HOST_CONFIG`), lets it open the websocket at once and ask beside that: 0.05 to 0.2 s of every first paint. A Streamlit
that does not know these names does as before.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

INDEX = Path(streamlit.__file__).parent / "static" / "index.html"
# Pages lie side by side, so the server is at the folder of the page's address, whatever a proxy puts before it.
TOLD = (
    '<script>window.__streamlit={BACKEND_BASE_URL:new URL("./",location.href).href,'
    "HOST_CONFIG:{allowedOrigins:[location.origin],useExternalAuthToken:false}}</script>"
)
_EARLY_KEYS = f"<script>{Path(__file__).with_name('early_keys.js').read_text(encoding='utf-8')}</script>"
ICON = Path(__file__).with_name("favicon.png")
OURS = TOLD + _EARLY_KEYS


async def _document(_: Request) -> Response:
    # Asked for anew each time, as Streamlit has it: the next version's document names other files.
    return HTMLResponse(document(), headers={"cache-control": "no-cache"})


@cache
def document() -> str:
    """HTML of every page."""
    before, head, after = INDEX.read_text(encoding="utf-8").partition("<head>")
    return f"{before}{head}{OURS if head else ''}{after}"


async def _icon(_: Request) -> Response:
    return FileResponse(ICON)


async def _to_root(request: Request) -> Response:
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./")


def routes(pages: list[str]) -> list[Route]:
    """Routes of the pages at these addresses and of their icon; the first stands at the root, where its own address
    leads.
    """
    first, *others = pages
    # set from a page's script, an icon would have a library of images loaded before the first page is drawn
    icon = Route("/favicon.png", _icon)
    return [*(Route(f"/{page}", _document) for page in ("", *others)), Route(f"/{first}", _to_root), icon]
