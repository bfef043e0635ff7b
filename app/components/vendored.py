"""Libraries of others that browsers fetch from this server: the files of `app/vendor`, as they were published."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

FOLDER = Path(__file__).resolve().parents[1] / "vendor"


def address(file: Path) -> str:
    """Address where a browser finds the file, beside the pages. The name says the version, so it is kept for good."""
    return f"assets/{file.name}"


async def _library(request: Request) -> Response:
    return FileResponse(
        FOLDER / Path(request.url.path).name,
        media_type="text/javascript",
        headers={"cache-control": "public, immutable, max-age=31536000"},
    )


ROUTES = [Route(f"/{address(file)}", _library) for file in sorted(FOLDER.glob("*.js"))]
