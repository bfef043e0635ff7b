"""The gate with an echo behind it, and how a browser signs in."""

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient

from app.hosting import gate
from app.hosting.members import member_of
from core.configuration import Configuration, Hosting, SignIn

PASSWORD = "correct horse"
SECRET = "shared-with-the-proxy"
URL = "http://ulpscope.example.org"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


async def echo(request):
    """Answer with the member and the headers that came through."""
    return JSONResponse({"member": member_of(request), "headers": dict(request.headers.items())})


async def talk(websocket):
    await websocket.accept()
    await websocket.send_text("hello")


def browser(
    url=URL,
    *,
    read_only=False,
    public_url="",
    **sign_in,
):
    """A browser of a server with these settings; without any it is on the server's own machine."""
    hosting = Hosting(read_only=read_only, public_url=public_url, proxy_secret=SECRET)
    protection = gate.middleware(Configuration(hosting=hosting, sign_in=SignIn(**sign_in)))
    routes = [WebSocketRoute("/_stcore/stream", talk), Route("/{path:path}", echo, methods=METHODS)]
    return TestClient(
        Starlette(routes=routes, middleware=protection),
        base_url=url,
        # Starlette's own is called `testclient`, which is no loopback address
        client=("127.0.0.1", 50000),
        follow_redirects=False,
    )


def sign_in(client, secret, target="/", **headers):
    return client.post("/sign-in", data={"next": target, "secret": secret}, headers=headers)
