"""Details of errors that are nobody's to see: where things lie on this server, and tracebacks.

An exception that nobody foresaw is answered with a sentence and an id; its traceback stands in the server's log beside
that id.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import streamlit as st
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.hosting import page_guard
from app.hosting.security_headers import guarded
from core.runs.store.store import open_store
from core.text import shown

ROOT = Path(__file__).resolve().parents[2]
_log = logging.getLogger(__name__)


def without_places(sentence: str) -> str:
    """A sentence that calls this server's own directories by what they are (`the store`), not by where they lie."""
    if os.sep not in sentence:
        return sentence
    store = open_store()
    for pattern, name in _places(store.directory, store.read_only, Path.cwd()):
        sentence = pattern.sub(name, sentence)
    return sentence


@lru_cache(maxsize=8)
def _places(store: Path, samples: tuple[Path, ...], _: Path) -> list[tuple[re.Pattern[str], str]]:
    """(pattern, name) of every directory of this server, the deepest first; _: where relative ones start."""
    named = [
        (store, "the store"),
        *((folder, "the sample runs") for folder in samples),
        (ROOT, "the program"),
        *((Path(prefix), "the program") for prefix in (sys.prefix, sys.base_prefix)),
        (Path(tempfile.gettempdir()), "a temporary folder"),
        (Path(os.environ.get("HOME") or os.sep), "~"),
    ]
    found = {str(form): name for folder, name in reversed(named) for form in (folder.absolute(), folder.resolve())}
    deepest = sorted((place for place in found if place != os.sep), key=len, reverse=True)
    return [(re.compile(rf"(?<![\w.-]){re.escape(place)}(?![\w-]|\.\w)"), found[place]) for place in deepest]


def told(error: Exception) -> str:
    """An error of ours as a page says it: for a viewer without this server's places."""
    return for_page(str(error))


def for_page(sentence: str) -> str:
    """A sentence of this server as a page has it: for a viewer without this server's places."""
    return sentence if page_guard.may_edit() else without_places(sentence)


def on_page(failure: Exception) -> bool:
    """Draw what a page says of an exception that nobody foresaw, in place of Streamlit: its details for who may change
    something here, as on one's own machine; for a viewer a sentence with an id.
    """
    if page_guard.may_edit():
        st.exception(failure)
    else:
        st.error(_sentence(_noted(failure, "a page")))
    return True


class Unforeseen:
    """ASGI middleware that answers an exception nobody foresaw with a sentence and an id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def sending(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            raise
        except Exception as failure:
            if is_begun:  # nothing can be said any more; the connection ends
                raise
            number = _noted(failure, f"{shown(scope['method'], 20)} {shown(scope['path'], 200)}")
            await _answer(scope["path"], _sentence(number))(scope, receive, guarded(send, scope, None))


def _answer(path: str, sentence: str) -> Response:
    headers = {"cache-control": "no-store"}
    if path.startswith("/api/"):
        return JSONResponse({"error": sentence}, 500, headers)
    return PlainTextResponse(f"{sentence}\n", 500, headers)


def _noted(failure: Exception, where: str) -> str:
    """Write the traceback to the log; returns the id it stands under."""
    number = secrets.token_hex(4)
    _log.error("%s: %s failed", number, where, exc_info=failure)
    return number


def _sentence(number: str) -> str:
    return f"The server failed at this; whoever runs it finds the reason in its log, under {number}."
