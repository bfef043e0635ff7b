"""A Ray cluster that is joined for a while: whatever is wrong with it is one sentence, within a minute."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ..errors import ExtraError, UlpscopeError, UsageError
from ..text import joined, shown

LOCAL, AUTO = "local", "auto"
_REACH_SECONDS = 5.0  # for a port to answer
_HEALTH_SECONDS = 30.0  # for Ray to say that it is well: ray.init would wait for two minutes and end the process
_ADDRESS = re.compile(r"\[?[\w.:-]+\]?:[0-9]{1,5}")


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster: `local` makes one of this machine that ends with the block, `auto` is the one that
    this machine is a node of, else HOST:PORT. UlpscopeError, one sentence within a minute, for all that can be wrong.
    """
    if address not in (LOCAL, AUTO) and not _ADDRESS.fullmatch(address):
        raise UsageError(f"--ray '{shown(address)}' is no address; expected {joined([LOCAL, AUTO, 'HOST:PORT'])}.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers of every cluster that it starts
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a slot without a GPU is told cpu by its cell
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise ExtraError("--ray needs Ray, which is not installed; `pip install 'ulpscope[ray]'` brings it.") from None
    if address != LOCAL:
        _check(address)
    settings = {"include_dashboard": False} if address == LOCAL else {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **settings)
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise UlpscopeError(f"--ray {address}: the cluster could not be joined ({shown(said, 300)}).") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)  # it has put its own in their place
    try:
        yield ray
    finally:
        ray.shutdown()


def _check(address: str) -> None:
    """UlpscopeError where no cluster answers at an address. A process asks: it can be ended."""
    host, _, port = address.rpartition(":")
    hint = "`ray start --head` starts a cluster and prints its address"
    try:
        if address != AUTO:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
        asked = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
        asked += [] if address == AUTO else ["--address", address]
        is_well = subprocess.run(asked, capture_output=True, timeout=_HEALTH_SECONDS).returncode == 0
    except (OSError, OverflowError) as error:
        raise UlpscopeError(f"--ray {address}: cannot be reached ({error}); {hint}.") from None
    except subprocess.TimeoutExpired:
        is_well = False
    if not is_well:
        raise UlpscopeError(f"--ray {address}: no Ray cluster of this version answers there; {hint}.")
