"""A process that reads untrusted files: each in a child of its own, with limits, and what became of
it as a line of JSON.

`python -m tests.fuzz.reading` takes `[path, fault]` as JSON a line. A fault is planted: a crash or
an exception.
"""

import json
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from core.errors import UlpscopeError
from core.judging.explain.causes import explain
from core.judging.explain.rows import rows_of_lists
from core.responses.pairing import compare_sides
from core.runs.dumps.dump import open_dump
from core.runs.ops_run import read_ops
from core.runs.reader import RunReader
from core.runs.reports.conditions import MEASURES, parse_conditions
from core.runs.reports.gate import gate_of
from core.runs.reports.gate_files import junit_text, markdown_text
from core.runs.reports.report_json import report_of_run
from core.runs.store.cards import prompt_texts, read_runs
from core.runs.store.store import Store

GATE = ["bits,flips,flips:margin>1ulps,ulps:1,kl>0,rms>0,max-abs>0,share>0,same-top1<1,verdict"]
SECONDS = 15.0  # far above the 0.2 s that such a file takes, on a machine that does other work
MEMORY = 3 << 30  # of addresses beyond those of the parent


@dataclass(frozen=True)
class Outcome:
    """Result of one reading. how: read, sentence, exception, signal or timeout."""

    how: str
    text: str

    @property
    def fault(self):
        """What is wrong with it; empty if nothing is."""
        if self.how not in ("read", "sentence"):
            return f"{self.how}: {self.text}"
        is_sentence = (
            self.text.isprintable() and self.text.endswith(".") and 10 < len(self.text) < 1000
        )
        return "" if self.how == "read" or is_sentence else f"no sentence: {self.text!r}"


def read_everything(path):
    """All that any page, route or command reads of such a file."""
    if path.suffix != ".duckdb":
        with open_dump([path], fewest_sides=1) as dump:
            for _ in dump.chunks():
                pass
        return
    card = read_runs([path])[path]
    prompt_texts([path])
    if isinstance(card, UlpscopeError):
        with suppress(UlpscopeError):
            _read_run(path)
        raise card
    if card.kind == "ops":
        read_ops(Store(path.parent), path.stem)
    else:
        _read_run(path)


def _read_run(path):
    with RunReader(path) as run:
        rows = run.header.rows
        vocab = run.header.vocab
        if run.header.k is not None:
            _read_lists(run)
        for side in range(len(run.sides)):
            if run.has_all_logits:
                run.read_rows(side, 0, rows)
                run.read_window(side, (0, rows), (0, vocab))
            run.logsumexp(side)
            for prompt, position in run.header.places()[:8]:
                if run.has_all_logits:
                    run.at(side, prompt, position)
                run.top_tokens([side], prompt, position)
        for pair in run.pairs:
            for read in (run.positions, run.histogram, run.evidence):
                read(pair.index)
            if run.header.k is None:
                run.stored_cells("ulps", pair.index, 0, (0, rows))
            for table in ("kv", "kv_position", "layer", "layer_position", "floor_position"):
                run.rows(table, pair=pair.index)
        for _ in (run.classes, run.vocabulary, run.mitigations, run.generations):
            pass
        pairs, _ = report_of_run(run)
        conditions = [
            each
            for each in parse_conditions(GATE)
            if run.header.k is None or not MEASURES[each.kind].refused
        ]
        gate = gate_of(run, pairs, conditions)
        json.dumps(gate.as_json(), allow_nan=False)
        (junit_text(gate) + markdown_text(gate)).encode()


def _read_lists(run):
    sides = run.responses()
    for side in sides[1:]:
        pair = compare_sides(sides[0], side)
        explain(rows_of_lists(pair, sides[0], side))


def _plant(fault):
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "raise":
        raise KeyError("planted")


def _in_child(path, fault, told):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # DuckDB's last words
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # a planted crash would write gigabytes of memory to the disk
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    how = "read"
    text = ""
    try:
        _plant(fault)
        read_everything(path)
    except UlpscopeError as error:
        how = "sentence"
        text = str(error)
    except BaseException as error:
        how = "exception"
        text = repr(error)[:500]
    os.write(told, json.dumps({"how": how, "text": text}).encode())
    os._exit(0)


def outcome(path, fault=""):
    """Read a file in a forked child with limits. fault: one to plant, which crashes or raises."""
    said, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said)
        _in_child(path, fault, told)
    os.close(told)
    is_ready = bool(select.select([said], [], [], SECONDS)[0])
    if not is_ready:
        os.kill(child, signal.SIGKILL)
    answer = b"".join(iter(lambda: os.read(said, 1 << 16), b""))
    os.close(said)
    _, status = os.waitpid(child, 0)
    if not is_ready:
        return Outcome("timeout", f"nothing within {SECONDS} s")
    if os.WIFSIGNALED(status) or not answer:
        return Outcome("signal", f"the process ended with status {status}")
    return Outcome(**json.loads(answer))


def main():
    """Take `[path, fault]` as JSON a line: a process without the threads of pytest, for forks."""
    for line in sys.stdin:
        path, fault = json.loads(line)
        print(json.dumps(outcome(Path(path), fault).__dict__), flush=True)


if __name__ == "__main__":
    main()
