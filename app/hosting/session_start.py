"""Start of a session once somebody is known, whichever way they signed in: its cookie, and what both ways say."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.hosting import authentication, client_address
from app.hosting.audit_async import tell
from app.hosting.identity import Identity
from app.hosting.live_settings import AuthStore, is_secure
from core.configuration import Configuration

CALLBACK = "/sign-in/callback"
RIGHT = "sign-ins from your address, or with what you signed in with"
NO_DISK = "Signing in is not possible at this moment: the server cannot write to its disk."


async def admitted(
    request: Request, found: Configuration, place: AuthStore, identity: Identity, credential: str
) -> float:
    """Count a sign-in with a right secret: 0, or the seconds to wait where there were too many, by whoever."""
    return await run_in_threadpool(
        place.sessions.admit,
        identity.name,
        identity.way,
        credential,
        client_address.client_of(request.scope, found.hosting),
        found.sign_in.sign_ins,
        60 * found.sign_in.attempt_minutes,
    )


async def begin(
    request: Request, found: Configuration, place: AuthStore, identity: Identity, credential: str, target: str
) -> Response:
    """Begin a new session, end the old one, and go on to where the viewer wanted to go."""
    before = authentication.session_cookie(request.headers, found, place)
    if before is not None:
        await run_in_threadpool(authentication.sign_out, before, place)
    hours = found.sign_in.session_hours
    said = await run_in_threadpool(place.sessions.begin, identity.name, identity.way, credential, hours)
    address = client_address.client_of(request.scope, found.hosting)
    await tell(place.directory, identity.name, "sign-in", role=identity.role, way=identity.way, address=address)
    answer = RedirectResponse(target, 303)
    set_cookie(answer, place, found, "session", authentication.cookie_value(place, said), round(3600 * hours))
    drop_cookie(answer, place, found, "form")
    return answer


def set_cookie(answer: Response, place: AuthStore, found: Configuration, kind: str, value: str, seconds: int) -> None:
    name = place.cookie(kind, is_secure(found))
    answer.set_cookie(name, value, max_age=seconds, path="/", secure=is_secure(found), httponly=True, samesite="lax")


def drop_cookie(answer: Response, place: AuthStore, found: Configuration, kind: str) -> None:
    name = place.cookie(kind, is_secure(found))
    answer.delete_cookie(name, path="/", secure=is_secure(found), httponly=True, samesite="lax")


def too_many(seconds: float, what: str = "wrong attempts from your address") -> str:
    minutes = max(1, round(seconds / 60))
    return f"Too many {what}; try again in {minutes} minute{'s' if minutes > 1 else ''}."


def later(answer: Response, seconds: float) -> Response:
    """A refusal with the time after which it is worth trying again."""
    answer.headers["retry-after"] = str(round(seconds))
    return answer
