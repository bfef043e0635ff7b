"""Reading any file ends in a sentence or in figures: no crash, no other exception, in bounded time
and memory. `make test` reads 8 damaged files a test, `make thorough` ULPSCOPE_FUZZ (1500).
"""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.damage import DAMAGES, corpus, damaged, damaged_inside
from tests.fuzz.reading import Outcome
from tests.places import ROOT

DUMPS = corpus(".npz", ".npy", ".safetensors")
ARCHIVES = corpus(".npz")
RUNS = corpus(".duckdb")
LONG = int(os.environ.get("ULPSCOPE_FUZZ", "1500"))


@pytest.fixture(scope="module")
def read():
    command = [sys.executable, "-m", "tests.fuzz.reading"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        send = process.stdin
        answer = process.stdout

        def ask(path, fault=""):
            send.write(json.dumps([str(path), fault]) + "\n")
            send.flush()
            return Outcome(**json.loads(answer.readline()))

        yield ask
        send.close()


@pytest.mark.parametrize("name", sorted(DUMPS | RUNS))
def test_a_whole_file_is_read(name, read, tmp_path):
    (tmp_path / name).write_bytes((DUMPS | RUNS)[name])
    assert read(tmp_path / name) == Outcome("read", "")


@pytest.mark.parametrize(
    "examples",
    [8, pytest.param(LONG, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize(
    "kind",
    ["dump", "archive behind its checksums", "run"],
)
def test_a_damaged_file_is_a_sentence_or_what_it_was(kind, examples, read, tmp_path):
    files = {"dump": DUMPS, "run": RUNS}.get(kind, ARCHIVES)
    seen = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.sampled_from(sorted(files)),
        st.integers(0, 7),
        st.lists(DAMAGES, min_size=1, max_size=4),
    )
    def each(name, member, damages):
        raw = files[name]
        path = tmp_path / name
        path.write_bytes(
            damaged(raw, damages)
            if kind in ("dump", "run")
            else damaged_inside(raw, member, damages),
        )
        outcome = read(path)
        seen[outcome.how] += 1
        assert outcome.fault == "", outcome

    # `make test` reads the same files every time, a long run others
    (each if examples == LONG else seed(0)(each))()
    # or the damage would be in bytes that nothing reads
    assert seen["sentence"] > examples // 20


PLANTED = {"crash": "signal", "raise": "exception: KeyError"}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_of_a_reader_is_seen(fault, read, tmp_path):
    (tmp_path / "plain.npz").write_bytes(DUMPS["plain.npz"])
    assert PLANTED[fault] in read(tmp_path / "plain.npz", fault).fault
