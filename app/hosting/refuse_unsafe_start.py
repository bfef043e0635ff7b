"""Checks of the server's process before it takes requests: it refuses to start where it would let anybody in."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import streamlit as st
from streamlit import config

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
        if found.sign_in.is_configured:
            auth_store()
    except UlpscopeError as error:
        _refuse(str(error))


def _is_streamlits() -> bool:
    """Return whether `streamlit run` is what imports the dashboard: it has set this by then, and nothing else does."""
    return getattr(config, "_server_mode", None) is not None


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"error: {sentence}\n")
    sys.stderr.flush()
    raise SystemExit(EXIT_CODE)
