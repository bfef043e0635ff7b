"""Forks a child from a warm process, lets it work on a store, and kills it: `python -m
tests.faults.nursery`.

A line of standard input is JSON: the store, the work, a seed, and the moment in seconds after the
child began to write. The kill thus falls into the work, and not into the start of Python.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from core.judging.ingest import ingest
from core.numerics.divergence import compare
from core.runs.store.store import Store
from tests.core.runs.made_runs import calm_sides, copied, header_of
from tests.waiting import until


def dump_of(folder):
    """A dump of 0.6 MB: some twenty milliseconds of writing."""
    path = folder / "dump.npz"
    if not path.exists():
        logits = np.random.default_rng(3).standard_normal((24, 4096)).astype(np.float32)
        np.savez(path, reference=logits, variant=logits + np.float32(1e-4))
    return path


def change(store, seed):
    """Delete a run or restore one."""
    # more restored than deleted, or the store would soon hold a single run
    if (deleted := store.deleted()) and random.Random(seed).random() < 0.7:
        store.restore(deleted[0].run_id)
    elif len(store.paths()) > 1:
        store.delete(random.Random(seed).choice(store.paths()).stem)


def ingest_one(store, seed):
    ingest(store, [dump_of(store.directory.parent)], name=f"ingest {seed}")


def careless(store, seed):
    """The planted fault: a run that is written under its final name, as it grows."""
    whole = (store.directory.parent / "whole.duckdb").read_bytes()
    with (store.directory / f"careless-{seed}.duckdb").open("wb") as file:
        for start in range(0, len(whole), 1 << 14):
            file.write(whole[start : start + (1 << 14)])
            file.flush()
            time.sleep(0.004)


WORK = {"change": change, "ingest": ingest_one, "careless": careless}


def _child(work, store, seed, begun):
    try:
        # the parent answers on standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.write(begun, b".")
        for step in range(1_000_000):
            WORK[work](store, seed * 1000 + step)
    except BaseException:
        traceback.print_exc()
    # without the parent's buffers and exit handlers, which the fork has copied
    os._exit(1)


def _is_writing(store):
    return any(
        path.name.startswith((".partial-", "careless-")) for path in store.directory.iterdir()
    )


def main():
    for line in sys.stdin:
        directory, work, seed, seconds = json.loads(line)
        store = Store(Path(directory))
        dump_of(store.directory.parent)
        copied(store.directory.parent / "whole.duckdb")
        # compiled once; 8 rows start no thread
        compare(*calm_sides(header_of()), header_of().format)
        store.sweep()  # what the last one left: a child that begins to write is seen by its own
        begun, begin = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(begun)
            _child(work, store, seed, begin)
        os.close(begin)
        os.read(begun, 1)
        if work != "change":
            # twenty milliseconds of writing would fit between two usual looks
            until(lambda store=store: _is_writing(store), every=0.0005)
        time.sleep(seconds)  # the moment at which it dies
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        os.close(begun)
        print(
            "killed" if status == signal.SIGKILL else f"it had ended by itself ({status})",
            flush=True,
        )


if __name__ == "__main__":
    main()
