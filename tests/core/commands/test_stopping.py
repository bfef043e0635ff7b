"""Stopping a command whose main thread is inside one long call of C: real processes, real
signals.
"""

import signal
import subprocess
import sys

import pytest

from core.commands.terminal import stopping
from core.commands.terminal.stopping import EXIT_CODE
from tests.places import ROOT
from tests.shell import python

# A run is being written and the main thread is inside a call that lets other threads run and that
# no signal ends, as in a forward.
STUCK = """
import hashlib, sys, threading
from pathlib import Path
from core.commands.terminal import stopping
from core.commands.terminal.stopping import stoppable
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.waiting import until

main = threading.get_ident()
call = compile("hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)", "", "exec")

def tell():
    # once the main thread has let another one run while in these few instructions: in the call
    until(lambda: sys._current_frames()[main].f_code is call)
    print("begun", flush=True)

sides = tuple(SideHeader(name, name, "float32") for name in "ab")
header = RunHeader("stuck", "float32", 8, (Prompt(4),), sides, Provenance("capture"))
with stoppable(), RunWriter(Store(Path(sys.argv[1])), header):
    threading.Thread(target=tell, daemon=True).start()
    exec(call)
"""


def started(store):
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(store)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begun\n"
    assert list(store.glob(".partial-*"))
    return process


@pytest.mark.spread(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_inside_one_long_call_ends_within_two_seconds_and_leaves_nothing(
    tmp_path,
    number,
):
    """By the clock of the one who stops it, which alone can be told on a machine if others are at
    work: without it nothing would end it.
    """
    assert stopping.PATIENCE_SECONDS < 2
    process = started(tmp_path)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130 == EXIT_CODE
    assert said == "stopped; nothing was stored.\n"
    assert list(tmp_path.iterdir()) == []


IMPATIENT = """
import os, signal, threading, typer
from core.commands.terminal.stopping import stoppable
try:
    with stoppable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            for _ in range(5):
                signal.raise_signal(signal.SIGINT)  # its handler has run when this returns
                threading.Event().wait(0.02)  # the watcher hears it, and goes on
            print("cleaned up", flush=True)
except typer.Exit as left:
    raise SystemExit(left.exit_code)
"""


def test_further_interrupts_do_not_break_off_the_cleaning_up_after_the_first_and_say_nothing():
    done = python(IMPATIENT)
    assert (done.returncode, done.stdout, done.stderr) == (
        EXIT_CODE,
        "cleaned up\n",
        f"{stopping.SENTENCE}\n",
    )


SWALLOWED = """
import os, signal, typer
from core.commands.terminal.stopping import stoppable
try:
    with stoppable():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None
except typer.Exit as left:
    raise SystemExit(left.exit_code)
"""


def test_an_interrupt_that_a_library_made_another_error_of_is_still_one():
    done = python(SWALLOWED)
    assert done.returncode == EXIT_CODE
    assert done.stderr == f"{stopping.SENTENCE}\n"
