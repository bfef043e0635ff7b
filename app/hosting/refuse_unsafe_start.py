"""Checks of the server's process before it takes requests: it refuses to start where it would let anybody in."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import streamlit as st
from streamlit import config

from app.hosting import local_access
from app.hosting.live_settings import auth_store, now_in_force
from core.errors import ConfigurationError, UlpscopeError
from core.hosting import start

EXIT_CODE = 2


def check() -> None:
    """End the process with one sentence and exit code 2 where it must not start. `streamlit run` has bound its port by
    then, and answers nobody.
    """
    try:
        found = now_in_force()
        address = (
            st.get_option("server.address") if _is_streamlits() else "127.0.0.1"
        )  # another server's is looked at by the gate
        start.check(found, os.environ, address)
        if any(each.startswith("--forwarded-allow-ips") for each in sys.argv):
            raise ConfigurationError(
                "--forwarded-allow-ips is given; name the proxies in [hosting] trusted_proxies instead."
            )
        for warning in start.warnings(found, os.environ):
            _say(f"warning: {warning}")
        if found.sign_in.is_configured:
            auth_store()
        elif found.hosting.local_token:
            _say(f"open {_origin(address)}/?token={local_access.ask_for_token()}")
    except UlpscopeError as error:
        _refuse(str(error))


def _is_streamlits() -> bool:
    """Return whether `streamlit run` is what imports the dashboard: it has set this by then, and nothing else does."""
    return getattr(config, "_server_mode", None) is not None


def _origin(address: str) -> str:
    """URL of the server for a browser of this machine; under another server than Streamlit's its port is not known."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{st.get_option('server.port') if _is_streamlits() else 'PORT'}"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _refuse(sentence: str) -> NoReturn:
    _say(f"error: {sentence}")
    raise SystemExit(EXIT_CODE)
