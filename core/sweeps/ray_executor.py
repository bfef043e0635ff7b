"""Cells of a sweep on a Ray cluster: a task per cell, which Ray retries if its node or process is
lost.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ExtraError, UlpscopeError
from ..runs.store.store import Store
from ..text import clean
from .ledger import DONE, FAILED, RUNNING, CellOutcome
from .plan import Cell
from .workers import Compute, by_model

LOCAL, AUTO = "local", "auto"
RETRIES = 2  # of a cell whose node or process was lost
# waiting for 10,000 tasks takes Ray seconds each time
_IN_FLIGHT = 500
_WAIT_SECONDS = 1.0
# the process of a lost node releases its cell within this time
_LEAVE_SECONDS = 60.0
_HEALTH_SECONDS = 30.0


def compute_on_ray(
    cells: Sequence[Cell],
    compute: Compute,
    store: Store,
    address: str,
    *,
    jobs: int = 1,
) -> Iterator[CellOutcome]:
    """Compute cells on a cluster, `jobs` at once per GPU or node; yield outcomes.

    Closing ends the tasks.
    """
    with connection(address) as ray:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        has_gpu = any(node.get("GPU") for node in nodes)
        cores = min((int(node["CPU"]) for node in nodes if node.get("CPU")), default=1)
        cpus = max(1, cores // jobs)
        name = "OMP_NUM_THREADS"
        threads = {name: os.environ[name]} if name in os.environ else {}
        task = ray.remote(_compute_there)
        waiting = deque(by_model(cells))
        in_flight: dict[Any, Cell] = {}
        first_seen_running: dict[str, float] = {}
        while waiting or in_flight:
            while waiting and len(in_flight) < _IN_FLIGHT:
                cell = waiting.popleft()
                device = cell.axes["device"]
                wants_gpu = device.startswith("cuda") or (has_gpu and not device)
                if wants_gpu and not has_gpu:
                    yield CellOutcome(cell, FAILED, says="no node of the cluster has a GPU.")
                    continue
                place = {"num_cpus": 1, "num_gpus": 1 / jobs} if wants_gpu else {"num_cpus": cpus}
                task_here = task.options(
                    max_retries=RETRIES,
                    runtime_env={"env_vars": threads},
                    **place,
                )
                in_flight[task_here.remote(compute, cell, str(Path.cwd()))] = cell
            if not in_flight:
                break
            for reference in ray.wait(list(in_flight), timeout=_WAIT_SECONDS)[0]:
                cell = in_flight.pop(reference)
                try:
                    outcome: CellOutcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    outcome = CellOutcome(cell, FAILED, says=_reason(error))
                if outcome.state == RUNNING:
                    since = first_seen_running.setdefault(cell.digest, time.monotonic())
                    if time.monotonic() - since < _LEAVE_SECONDS:
                        waiting.append(cell)
                        time.sleep(_WAIT_SECONDS)
                        continue
                if outcome.state == DONE and not store.has(outcome.run_id):
                    says = (
                        f"a node computed it, but {store.address} does not have it; all nodes must"
                        " share the store."
                    )
                    outcome = CellOutcome(cell, FAILED, says=says)
                yield outcome


def _compute_there(compute: Compute, cell: Cell, folder: str) -> CellOutcome:
    """Compute a cell on a node, in the folder to which the plan's paths are relative."""
    if Path(folder).is_dir():
        os.chdir(folder)
    return compute(cell)


def _reason(error: Exception) -> str:
    """Return the message of a Ray exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    reason = clean(lines[-1] if len(lines) < 3 else lines[0], 300)
    return f"its process was lost, {RETRIES + 1} times in all: {reason}"


@contextmanager
def connection(address: str) -> Iterator[Any]:
    """Connect Ray: `local` starts a cluster of this machine, `auto` uses this node's, else
    HOST:PORT.
    """
    # Ray would report every cluster that it starts
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise ExtraError("--ray needs Ray; install it by `pip install 'ulpscope[ray]'`.") from None
    if address != LOCAL:
        _check_health(address)
    settings = {"include_dashboard": False} if address == LOCAL else {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **settings)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UlpscopeError(
            f"--ray {address}: the cluster could not be joined ({clean(reason, 300)}).",
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                # Ray replaces them
                signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_health(address: str) -> None:
    """Raise UlpscopeError if no cluster answers.

    A process asks: `ray.init` waits 122 s and then ends its process.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    command += [] if address == AUTO else ["--address", address]
    try:
        is_healthy = (
            subprocess.run(command, capture_output=True, timeout=_HEALTH_SECONDS).returncode == 0
        )
    except subprocess.TimeoutExpired:
        is_healthy = False
    if not is_healthy:
        raise UlpscopeError(
            f"--ray {address}: no Ray cluster answers; `ray start --head` starts one and prints its"
            " address.",
        )
