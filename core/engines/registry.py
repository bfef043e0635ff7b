"""Registry of the engines that can be sides: which adapter runs each, and with which
interpreter.
"""

import atexit
import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configuration import configuration
from ..errors import CaptureError, UsageError
from ..text import series
from .process import ADAPTERS, EngineDescription, EngineProcess

VARIABLE = "ULPSCOPE_ENGINE_"  # followed by the engine's name in capitals
_RUNNING = 2  # processes that stay up, one per side


@dataclass(frozen=True)
class EngineLocation:
    """Interpreter that has an engine, its adapter, and the adapter's arguments: a folder of dumps
    that it replays.
    """

    python: str
    adapter: Path
    arguments: tuple[str, ...] = ()

    def start(self, name: str, **more: Any) -> EngineProcess:
        return EngineProcess(name, self.python, self.adapter, self.arguments, **more)


# A prefix, as an adapter's folder is on its path: `vllm.py` would be imported in place of vLLM.
ADAPTER_OF = {
    path.stem.removeprefix("adapter_"): path for path in sorted(ADAPTERS.glob("adapter_*.py"))
}
_locations: dict[str, EngineLocation] = {}
_descriptions: dict[tuple[str, EngineLocation], EngineDescription] = {}
_running: OrderedDict[tuple[str, EngineLocation, str], EngineProcess] = OrderedDict()
_lock = threading.RLock()


def names() -> list[str]:
    """Return the names of all engines, those of --engine included."""
    own = [name.removeprefix(VARIABLE).lower() for name in os.environ if name.startswith(VARIABLE)]
    return list(dict.fromkeys([*ADAPTER_OF, *sorted(own), *_configured_engines(), *_locations]))


def _parse(text: str) -> tuple[str, str]:
    name, equals, place = text.partition("=")
    name, place = name.strip().lower(), place.strip()
    if not equals or not name.isidentifier() or not place:
        raise UsageError(
            f"--engine '{text}': expected NAME=PYTHON, NAME=PYTHON,ADAPTER.py or NAME=FOLDER.",
        )
    return name, place


def _configured_engines() -> dict[str, str]:
    """Return the engines of the configuration file: name -> place."""
    return dict(_parse(text) for text in configuration().engines.places)


def use_all(settings: Sequence[str] | None) -> None:
    """Add engines: `NAME=PYTHON`, `NAME=PYTHON,ADAPTER.py` or `NAME=FOLDER` of dumps."""
    for name, place in map(_parse, settings or ()):
        _locations[name] = _location(name, place)


def location_of(name: str) -> EngineLocation:
    """Return the location of an engine: --engine, then environment, then configuration, then this
    Python.
    """
    if name in _locations:
        return _locations[name]
    place = os.environ.get(VARIABLE + name.upper()) or _configured_engines().get(name)
    if place:
        return _location(name, place.strip())
    if name not in ADAPTER_OF:
        raise UsageError(
            f"no engine '{name}'. Engines: {series(names())}; add one by --engine"
            f" {name}=PYTHON,ADAPTER.py.",
        )
    return EngineLocation(sys.executable, ADAPTER_OF[name])


def _location(name: str, place: str) -> EngineLocation:
    if Path(place).is_dir():
        replay = ADAPTERS / "replay_dump.py"
        return EngineLocation(sys.executable, replay, (str(Path(place).resolve()),))
    python, comma, adapter = place.partition(",")
    if not comma and name not in ADAPTER_OF:
        raise UsageError(
            f"--engine {name}: ULPscope has no adapter of this name; write {name}=PYTHON,ADAPTER.py"
            " (docs/contributing/engine.md).",
        )
    file = Path(adapter) if comma else ADAPTER_OF[name]
    if not file.is_file():
        raise UsageError(f"--engine {name}: adapter {file} does not exist.")
    return EngineLocation(python, file.resolve())


def describe(name: str) -> EngineDescription:
    """Return an engine's description.

    One that is not installed is not cached: it may be installed later.
    """
    location = location_of(name)
    if (name, location) in _descriptions:
        return _descriptions[name, location]
    # a hello loads no model, so it comes soon or never
    with location.start(name, quiet_seconds=60) as process:
        about = EngineDescription.of(name, process.hello)
    if about.is_here:
        _descriptions[name, location] = about
    return about


def running(name: str, request: Mapping[str, Any]) -> EngineProcess:
    """Return the process that has loaded this request; it stays up for the next prompt."""
    location = location_of(name)
    key = (name, location, json.dumps(request, sort_keys=True, default=list))
    with _lock:
        process = _running.pop(key, None)
        if process is None or process.has_ended:
            for ended in [each for each, other in _running.items() if other.has_ended]:
                del _running[ended]
            # the one that was used longest ago goes first
            while len(_running) >= _RUNNING:
                _running.popitem(last=False)[1].end()
            process = location.start(name)
            try:
                process.load(request)
            except BaseException:
                # also after Ctrl-C: nobody else would end the process
                process.end()
                raise
        # as the latest, so that it is the last to be ended
        _running[key] = process
        return process


@atexit.register
def end_all() -> None:
    """End every engine that runs."""
    with _lock:
        while _running:
            _running.popitem()[1].end()


def list_engines() -> list[dict[str, Any]]:
    """Return every engine: location, version and capabilities, or the reason why it is
    unavailable.
    """
    # each row starts a process
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(_row, names()))


def _row(name: str) -> dict[str, Any]:
    row = {"name": name, "engine": name, "version": "", "is_here": False, "note": ""}
    try:
        about = describe(name)
    except (CaptureError, UsageError) as error:
        return row | {"note": str(error)}
    return row | {
        "engine": about.engine,
        # what is not installed has no version
        "version": about.version if about.is_here else "",
        "is_here": about.is_here,
        "python": location_of(name).python,
        "dtypes": list(about.dtypes),
        "bases": about.syntax("base"),
        "modifiers": about.syntax("modifier"),
    }
