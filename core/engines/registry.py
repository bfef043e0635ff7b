"""Registry of the engines that can be sides: which adapter runs each, and with which interpreter."""

from __future__ import annotations

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
from ..text import joined
from .process import ADAPTERS, EngineDescription, EngineProcess

VARIABLE = "ULPSCOPE_ENGINE_"  # followed by the engine's name in capitals
_RUNNING = 2  # processes that are kept, one a side


@dataclass(frozen=True)
class EngineLocation:
    """Interpreter that has an engine, its adapter, and the folder of dumps that it replays, "" if it computes."""

    python: str
    adapter: Path
    folder: str = ""

    def start(self, name: str, **more: Any) -> EngineProcess:
        return EngineProcess(name, self.python, self.adapter, [self.folder] if self.folder else (), **more)


ADAPTER_OF = {
    "llamacpp": "adapter_llamacpp.py",
    "vllm": "adapter_vllm.py",
    "ct2": "adapter_ctranslate2.py",
    "ort": "adapter_onnxruntime.py",
    "genai": "adapter_onnxruntime_genai.py",
    "ov": "adapter_openvino.py",
    "mlx": "adapter_mlx.py",
    "sglang": "adapter_sglang.py",
    "trtllm": "adapter_tensorrt_llm.py",
    "transformers": "adapter_transformers.py",
}
_given: dict[str, EngineLocation] = {}
_described: dict[tuple[str, EngineLocation], EngineDescription] = {}
_running: OrderedDict[tuple[str, EngineLocation, str], tuple[EngineProcess, dict[str, Any]]] = OrderedDict()
_lock = threading.RLock()


def names() -> list[str]:
    """Return the engines that this process knows, those that were given included."""
    own = [name.removeprefix(VARIABLE).lower() for name in os.environ if name.startswith(VARIABLE)]
    return list(dict.fromkeys([*ADAPTER_OF, *sorted(own), *_configured(), *_given]))


def _parsed(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    name, where = name.strip().lower(), where.strip()
    if not equals or not name.isidentifier() or not where:
        raise UsageError(f"--engine '{text}': expected NAME=PYTHON, NAME=PYTHON,ADAPTER.py or NAME=FOLDER.")
    return name, where


def _configured() -> dict[str, str]:
    """Return the places of the configuration file, by name."""
    return dict(_parsed(text) for text in configuration().engines.places)


def use_all(given: Sequence[str] | None) -> None:
    """Use `NAME=PYTHON`, `NAME=PYTHON,ADAPTER.py` or `NAME=FOLDER` of dumps from now on."""
    for name, where in map(_parsed, given or ()):
        _given[name] = _location(name, where)


def location_of(name: str) -> EngineLocation:
    """Return where an engine is: as given, as the environment or the configuration says, else this Python."""
    if name in _given:
        return _given[name]
    where = os.environ.get(VARIABLE + name.upper()) or _configured().get(name)
    if where:
        return _location(name, where.strip())
    if name not in ADAPTER_OF:
        raise UsageError(
            f"no engine '{name}'; known are {joined(names())}, and --engine {name}=PYTHON,ADAPTER.py adds one."
        )
    return EngineLocation(sys.executable, ADAPTERS / ADAPTER_OF[name])


def _location(name: str, where: str) -> EngineLocation:
    if Path(where).is_dir():
        return EngineLocation(sys.executable, ADAPTERS / "adapter_dump.py", str(Path(where).resolve()))
    python, comma, adapter = where.partition(",")
    if not comma and name not in ADAPTER_OF:
        raise UsageError(
            f"--engine {name}: ULPscope has no adapter of that name; write {name}=PYTHON,ADAPTER.py"
            " (docs/contributing/engine.md)."
        )
    file = Path(adapter) if comma else ADAPTERS / ADAPTER_OF[name]
    if not file.is_file():
        raise UsageError(f"--engine {name}: there is no adapter {file}.")
    return EngineLocation(python, file.resolve())


def described(name: str) -> EngineDescription:
    """Return what an engine can do. One that is not here is asked anew each time: it may be installed meanwhile."""
    location = location_of(name)
    if (name, location) not in _described:
        with location.start(name, quiet_seconds=60) as process:
            about = EngineDescription.of(name, process.hello)
        if not about.is_here:
            return about
        _described[name, location] = about
    return _described[name, location]


def running(name: str, request: Mapping[str, Any]) -> tuple[EngineProcess, dict[str, Any]]:
    """Return the process that has loaded what the request says, with its answer; it is kept for the next prompt."""
    location = location_of(name)
    key = (name, location, json.dumps(request, sort_keys=True, default=list))
    with _lock:
        kept = _running.pop(key, None)
        if kept is not None and not kept[0].has_ended:
            _running[key] = kept
            return kept
        while len(_running) >= _RUNNING:
            _running.popitem(last=False)[1][0].end()
        process = location.start(name)
        try:
            EngineDescription.of(name, process.hello)
            said = process.load(request)
        except BaseException:
            process.end()
            raise
        _running[key] = process, said
        return process, said


def drop(process: EngineProcess) -> None:
    """End a process that was left in the middle of a prompt: what it sends next would be another's rows."""
    with _lock:
        for key in [key for key, (kept, _) in _running.items() if kept is process]:
            del _running[key]
    process.end()


@atexit.register
def end_all() -> None:
    """End every engine that runs."""
    with _lock:
        while _running:
            _running.popitem()[1][0].end()


def listed() -> list[dict[str, Any]]:
    """Return every engine: where it is, its version, what it can do; or why it cannot be had."""
    with ThreadPoolExecutor(4) as pool:  # each starts a process
        return list(pool.map(_listed, names()))


def _listed(name: str) -> dict[str, Any]:
    row = {"name": name, "engine": name, "version": "", "is_here": False, "note": ""}
    try:
        about = described(name)
    except (CaptureError, UsageError) as error:
        return row | {"note": str(error)}
    row |= {"engine": about.engine, "version": about.version, "is_here": about.is_here}
    row |= {"python": location_of(name).python, "dtypes": list(about.dtypes)}
    return row | {"bases": about.shown("base"), "modifiers": about.shown("modifier")}
