"""Forks a child from a warm process, lets it work on a store, and kills it at a moment: `python -m
tests.faults.nursery`.

A line of standard input is JSON: the store, the work, a seed, and the moment in seconds after the child's first step
(work on runs that are there), or after it began to write (work that adds some). A line of standard output says that it
was killed, or how it ended by itself. The kill thus falls into the work, and not into the start of Python.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from core.errors import UlpscopeError
from core.judging.ingest import ingest
from core.numerics.divergence import compare
from core.runs.store import labels
from core.runs.store.store import Store
from tests.core.runs.made_runs import ROOT, calm_sides, copied, header_of
from tests.waiting import until

MODEL = ROOT / "sample_runs" / "model"


def dump_of(folder: Path) -> Path:
    """A dump of 0.6 MB: some twenty milliseconds of writing."""
    path = folder / "dump.npz"
    if not path.exists():
        logits = np.random.default_rng(3).standard_normal((24, 4096)).astype(np.float32)
        np.savez(path, reference=logits, variant=logits + np.float32(1e-4))
    return path


def change(store: Store, seed: int) -> None:
    """One change of a run that is there: labels, into the trash, out of it."""
    chance = random.Random(seed)
    action = chance.choice(("label", "label", "discard", "restore"))
    try:
        if action == "label":
            known = [path.stem for path in store.paths()] or ["none"]
            labels.write(
                store.directory,
                chance.choice(known),
                labels.labels_of([f"tag {seed}"], "a note " * chance.randrange(90)),
            )
        elif action == "discard" and len(store.paths()) > 1:
            store.discard(chance.choice(store.paths()).stem)
        elif action == "restore" and (entries := store.discarded()):
            store.restore(chance.choice(entries).entry)
    except UlpscopeError as error:
        if "there again" not in str(error):  # what a kill between link and unlink leaves, and purging clears
            raise


def ingest_one(store: Store, seed: int) -> None:
    ingest(store, [dump_of(store.directory.parent)], name=f"ingest {seed}")


def capture_one(store: Store, seed: int) -> None:
    """The command itself, in this process."""
    from core.__main__ import app

    arguments = [
        "capture",
        "--model",
        str(MODEL),
        "--prompt",
        f"def f{seed}(self):",
        "--reference",
        "prefill",
        "--variant",
        "decode",
    ]
    app([*arguments, "--progress", "json", "--store", str(store.directory)], standalone_mode=False)


def careless(store: Store, seed: int) -> None:
    """The planted fault: a run that is written under its final name, as it grows."""
    whole = (store.directory.parent / "whole.duckdb").read_bytes()
    with (store.directory / f"careless-{seed}.duckdb").open("wb") as file:
        for start in range(0, len(whole), 1 << 14):
            file.write(whole[start : start + (1 << 14)])
            file.flush()
            time.sleep(0.004)  # it takes its time, so that a kill falls into it


def forgetful(store: Store, seed: int) -> None:
    """Another one: a change that writes to a run in its place."""
    with random.Random(seed).choice(store.paths()).open("ab") as file:
        file.write(b"changed")


def losing(store: Store, seed: int) -> None:
    """Another one: a change that takes a run away before it has it anywhere else."""
    path = random.Random(seed).choice(store.paths())
    whole = path.read_bytes()
    path.unlink()
    time.sleep(0.005)  # so that a kill falls into it
    path.write_bytes(whole)


WORK: dict[str, Callable[[Store, int], None]] = {
    "change": change,
    "ingest": ingest_one,
    "capture": capture_one,
    "careless": careless,
    "forgetful": forgetful,
    "losing": losing,
}


class Nursery:
    """The process, for many kills; a context manager."""

    def __enter__(self) -> Nursery:
        command = [sys.executable, "-m", "tests.faults.nursery"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=300)

    def kill(self, store: Path, work: str, seed: int, seconds: float) -> str:
        """'killed', or how the child had ended before that."""
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("its input and output are pipes")
        self._process.stdin.write(json.dumps([str(store), work, seed, seconds]) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def _warm(work: str, store: Store) -> None:
    dump_of(store.directory.parent)
    if work == "careless":
        copied(store.directory.parent / "whole.duckdb")
    if work in ("ingest", "capture"):
        compare(*calm_sides(header_of()), header_of().format)  # compiled once; 8 rows start no thread
    if work == "capture":  # one thread: a pool of threads does not survive a fork
        import torch

        import core.inference.capture.capture  # noqa: F401

        torch.set_num_threads(1)


def _child(work: str, store: Store, seed: int, begun: int) -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        step = 0
        while True:
            WORK[work](store, seed * 1000 + step)
            if step == 0:
                os.write(begun, b".")
            step += 1
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _wait_for_writing(store: Store, child: int) -> None:
    def is_writing_or_over() -> bool:
        return os.waitpid(child, os.WNOHANG)[0] != 0 or any(
            path.name.startswith((".partial-", "careless-")) for path in store.directory.iterdir()
        )

    until(is_writing_or_over, every=0.0005)


def _killed(store: Store, work: str, seed: int, seconds: float) -> str:
    store.sweep()  # what the last one left: a child that begins to write is seen by its own
    begun, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begun)
        _child(work, store, seed, begin)
    os.close(begin)
    if work in ("change", "forgetful", "losing"):
        os.read(begun, 1)
    else:
        _wait_for_writing(store, child)
    time.sleep(seconds)  # the moment at which it dies
    try:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)[1]
    except (ProcessLookupError, ChildProcessError):
        ended = -1
    os.close(begun)
    return "killed" if ended == signal.SIGKILL else f"it had ended by itself ({ended})"


def main() -> None:
    for line in sys.stdin:
        directory, work, seed, seconds = json.loads(line)
        store = Store(Path(directory))
        _warm(work, store)
        print(_killed(store, work, seed, seconds), flush=True)


if __name__ == "__main__":
    main()
