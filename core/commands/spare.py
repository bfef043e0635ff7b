"""`spare`: a process that has loaded what an import needs and waits for its command."""

from __future__ import annotations

import importlib
import json
import signal
import sys

import typer

from ..numerics.divergence import COMPILING, is_compiled, prepare
from ..numerics.formats import BFLOAT16, FLOAT32

_LOADED = ("pandas", "pyarrow")
SECONDS = 600  # it waits for a command: it takes some 200 MB


def spare(context: typer.Context) -> None:
    """Load what `ingest` needs, read one line of JSON, `{"arguments": [...]}`, and run that command."""
    signal.alarm(SECONDS)
    for fmt in (FLOAT32, BFLOAT16):
        if not is_compiled(fmt):
            sys.stdout.write(json.dumps({"stage": COMPILING}) + "\n")
            sys.stdout.flush()
        prepare(fmt)
    for name in _LOADED:
        importlib.import_module(name)
    if line := sys.stdin.readline():
        signal.alarm(0)
        code = context.find_root().command.main(json.loads(line)["arguments"], standalone_mode=False)
        raise typer.Exit(code if isinstance(code, int) else 0)
