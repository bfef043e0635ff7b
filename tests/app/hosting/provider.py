"""A small OpenID Connect provider on loopback, which can be told to misbehave."""

import base64
import hashlib
import json
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from tests.waiting import until

CLIENT, SECRET = "ulpscope", "the secret of the client"


def encoded(content):
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class Provider:
    """claims: what it says of who signs in, over what is right; faults: what it does wrong."""

    def __init__(self, url):
        self.url = url
        self.claims = {}
        self.faults = set()
        self._key = RSAKey.generate_key(2048, {"kid": "one"}, private=True)
        # the same key id, so that the signature alone is wrong
        self._other = RSAKey.generate_key(2048, {"kid": "one"}, private=True)
        self._codes = {}

    def routes(self):
        return [
            Route("/.well-known/openid-configuration", self.discovery),
            Route("/authorize", self.authorize),
            Route("/token", self.token, methods=["POST"]),
            Route("/jwks", self.jwks),
        ]

    async def discovery(self, _):
        # the last two are offered, and a server must not take them
        algorithms = ["RS256", "HS256", "none"]
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
                "id_token_signing_alg_values_supported": algorithms,
            },
        )

    async def jwks(self, _):
        return JSONResponse({"keys": [self._key.as_dict(private=False)]})

    async def authorize(self, request):
        """Everybody who comes is signed in."""
        query = dict(request.query_params)
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        return RedirectResponse(
            f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}",
            302,
        )

    async def token(self, request):
        body = await request.body()
        fields = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        request_of_code = self._codes.pop(fields.get("code", ""), None)
        challenge = encoded(hashlib.sha256(fields.get("code_verifier", "").encode()).digest())
        is_client = request.headers.get("authorization") == f"Basic {basic}"
        asked = (request_of_code or {}).get("code_challenge")
        if not is_client or challenge != asked:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        nonce = request_of_code["nonce"]
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "1",
            "iat": now,
            "exp": now + 300,
            "nonce": nonce,
        }
        claims |= self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        token = {"access_token": "a", "token_type": "Bearer", "expires_in": 300}
        if "no token" in self.faults:
            return JSONResponse(token)
        return JSONResponse(token | {"id_token": self._signed(claims)})

    def _signed(self, claims):
        if "other key" in self.faults:
            return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self._other)
        if "client's secret" in self.faults:
            return jwt.encode({"alg": "HS256", "kid": "one"}, claims, OctKey.import_key(SECRET))
        if "unsigned" in self.faults:
            head = encoded(json.dumps({"alg": "none"}).encode())
            body = encoded(json.dumps(claims).encode())
            return f"{head}.{body}."
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self._key)


@contextmanager
def running():
    """Listening in a thread."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        provider = Provider(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=provider.routes()), log_level="warning"),
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield provider
        server.should_exit = True
        thread.join(10)
