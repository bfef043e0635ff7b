"""A process of an engine: any failure of an adapter is one sentence of the hub, and no process is
left behind.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from core.engines.process import EngineDescription, EngineProcess
from core.errors import CaptureError, UsageError
from core.path_grammar import Step, read_step
from tests.places import ROOT
from tests.waiting import until

HELLO = """
import os, sys, threading
import numpy as np
from ulpscope_engine import Refused, modifier, serve
hello = {"engine": "toy", "version": "1", "dtypes": ["float32"],
         "bases": {"prefill": {"says": "all"}},
         "modifiers": {"kv": modifier("cache", ["f16", "f32"]),
                       "threads": modifier("threads", least=1)}}
said = {"vocab": 8, "parts": {}}
"""


@pytest.fixture
def adapter(tmp_path):
    """Write an adapter whose end is given, and start it."""
    started = []

    def start(end, quiet_seconds=60.0):
        path = tmp_path / f"adapter_{len(started)}.py"
        path.write_text(HELLO + textwrap.dedent(end))
        started.append(EngineProcess("toy", sys.executable, path, quiet_seconds=quiet_seconds))
        return started[-1]

    yield start
    for process in started:
        process.end()


def test_rows_come_with_every_bit(adapter):
    """Each dtype's bits, NaN payloads and negative zeros included, are those that the engine
    has.
    """
    process = adapter(
        """
        def run(ids, rows):
            print("garbage on stdout", flush=True)
            os.write(1, b"more of it")
            rows(0, np.array([[0x7FC00001, 0x80000000]], "<u4").view("<f4"))
            rows(1, np.array([[0x3F80, 0xFF81]], "<u2"), dtype="bfloat16")
            rows(2, np.array([[1.5, -0.0]], np.float16))
        serve(hello, lambda request: (said, run))
        """,
    )
    assert process.hello["engine"] == "toy"
    assert process.load({"model": "m"})["vocab"] == 8
    first, second, third = process.run([1, 2, 3])
    assert first.bits.tolist() == [[0x7FC00001, 0x80000000]]
    assert second.start == 1
    assert second.dtype == "bfloat16"
    assert second.bits.tolist() == [[0x3F80, 0xFF81]]
    assert third.bits.tolist() == [[0x3E00, 0x8000]]
    assert len(list(process.run([1]))) == 3  # asked again, it answers again


def test_a_whole_prompt_that_is_handed_over_at_once_comes_in_pieces(adapter):
    """So that what holds a frame holds no prompt: 300 rows of 40,000 float32 are 48 MB."""
    process = adapter(
        """
        def run(ids, rows):
            rows(0, np.arange(300 * 40_000, dtype=np.float32).reshape(300, -1))
        serve(hello, lambda request: (dict(said, vocab=40_000), run))
        """,
    )
    process.load({"model": "m"})
    pieces = list(process.run([1] * 300))
    assert [piece.start for piece in pieces] == [0, 209]
    assert max(piece.bits.nbytes for piece in pieces) <= 32 << 20
    whole = np.concatenate([piece.bits for piece in pieces]).view(np.float32)
    assert np.array_equal(whole.ravel(), np.arange(300 * 40_000, dtype=np.float32))


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ("raise SystemExit(3)", "engine 'toy' ended with exit code 3."),
        ("import no_such_library", "No module named 'no_such_library'"),
        (
            "print('hello there, I am no frame', flush=True); threading.Event().wait()",
            "wrote 'hello there, I am no frame', which is not a JSON object",
        ),
        ("print('{{{', flush=True)", "is not a JSON object"),
        ("print('{\"bytes\": 9}', flush=True); sys.exit(4)", "ended with exit code 4"),
        ("os.kill(os.getpid(), 9)", "ended by SIGKILL, probably out of memory"),
        (
            "sys.stderr.write('fatal error: no room\\n'); os.abort()",
            'its last lines: "fatal error: no room"',
        ),
    ],
)
def test_an_adapter_that_does_not_begin_is_one_sentence(adapter, end, sentence):
    with pytest.raises(CaptureError) as caught:
        adapter(end)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (
            "raise Refused('no such thing here; ask for another.')",
            "engine 'toy': no such thing here; ask for another.",
        ),
        ("raise ValueError('several\\nlines')", "failed: ValueError: several lines"),
        ("raise MemoryError", "failed: out of memory"),
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("rows(0, np.zeros(8))", "expected [positions, features]"),
        (
            (
                "rows._send({'type': 'rows', 'start': 0, 'dtype': 'int8', 'shape': [1, 8]},"
                " np.zeros(8))"
            ),
            "sent rows of",
        ),
        (
            (
                "rows._send({'type': 'rows', 'start': 0, 'dtype': 'float32', 'shape': [2, 8]},"
                " np.zeros(8, '<f4'))"
            ),
            "in 32 bytes",
        ),
        ("rows._send({'type': 'nonsense'})", "sent 'nonsense'; expected rows or module or done"),
    ],
)
def test_a_fault_in_the_middle_is_one_sentence(adapter, run, sentence):
    process = adapter(f"def run(ids, rows):\n    {run}\nserve(hello, lambda request: (said, run))")
    process.load({})
    with pytest.raises(CaptureError) as caught:
        list(process.run([1, 2]))
    assert sentence in str(caught.value)


def test_an_engine_that_hangs_is_ended(adapter):
    process = adapter(
        "def run(ids, rows):\n    threading.Event().wait()\nserve(hello, lambda request: (said,"
        " run))",
        # also the time to load, on a busy machine
        quiet_seconds=10,
    )
    process.load({})
    with pytest.raises(CaptureError, match="sent nothing for 10 s"):
        list(process.run([1]))
    assert process.has_ended


def is_there(pid):
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return False
    # the name in brackets may hold blanks; the state of a process that nobody waits for is Z
    state, *_ = stat.read_text().rsplit(")", 1)[1].split()
    return state != "Z"


def test_no_process_outlives_a_hub_that_is_killed(tmp_path):
    """The hub is killed while the engine computes; the engine, which reads end of file, goes as
    well.
    """
    path = tmp_path / "adapter.py"
    path.write_text(
        HELLO
        + "def run(ids, rows):\n    threading.Event().wait()\nserve(hello, lambda request: (said,"
        " run))",
    )
    hub = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from core.engines.process import EngineProcess
        process = EngineProcess("toy", sys.executable, Path({str(path)!r}))
        process.load({{}})
        print(process._child._process.pid, flush=True)
        list(process.run([1]))
        """,
    )
    started = subprocess.Popen([sys.executable, "-c", hub], stdout=subprocess.PIPE, text=True)
    pid = int(started.stdout.readline())
    assert is_there(pid)
    started.kill()
    started.wait()
    until(lambda: not is_there(pid))


def test_what_an_engine_started_is_ended_with_it(adapter):
    process = adapter(
        """
        import subprocess
        waits = "import threading; threading.Event().wait()"
        child = subprocess.Popen([sys.executable, "-c", waits])
        said["versions"] = {"child": child.pid}
        serve(hello, lambda request: (said, None))
        """,
    )
    child = process.load({})["versions"]["child"]
    assert is_there(child)
    process.end()
    until(lambda: not is_there(child))


# ---- what an engine says of itself


def test_what_an_engine_cannot_do_is_refused_by_name():
    toy = EngineDescription.of(
        "toy",
        {
            "type": "hello",
            "protocol": 2,
            "engine": "Toy",
            "bases": {"prefill": {}, "chunked": {"least": 1}},
            "modifiers": {"kv": {"values": ["f16", "f32"]}},
        },
    )
    assert read_step("p", "chunked:8", "base", toy.arguments("base")) == Step("chunked", (8,))
    assert read_step("p", "kv:F32", "modifier", toy.arguments("modifier")) == Step("kv", ("f32",))
    for text, kind, sentence in (
        ("decode", "base", "no Toy base 'decode'; Toy bases are prefill, chunked:N"),
        ("chunked", "base", "has 0 values, not 1; write chunked:N"),
        ("chunked:0", "base", "a whole number of at least 1, not '0'"),
        ("kv:f8", "modifier", "kv takes one of f16, f32, not 'f8'"),
    ):
        with pytest.raises(UsageError) as caught:
            read_step("p", text, f"Toy {kind}", toy.arguments(kind))
        assert sentence in str(caught.value)


def test_what_does_not_go_together_is_refused_as_the_adapter_says():
    said = {
        "type": "hello",
        "protocol": 2,
        "bases": {"prefill": {}, "decode": {}},
        "modifiers": {
            "kv": {"values": ["f16", "f32"], "default": "f16"},
            "batch": {"least": 1},
        },
    }
    pairs = [
        {"where": {"base": ["decode"], "batch": []}, "says": "no."},
        {"where": {"kv": ["f16"], "batch": [2]}},
    ]
    with pytest.raises(CaptureError, match="missing required field `says`"):
        EngineDescription.of("toy", {**said, "refuses": pairs})
    pairs[1]["says"] = "two in float16"
    toy = EngineDescription.of("toy", {**said, "refuses": pairs})
    assert toy.contradiction("decode", {"batch": 1}) == "no"
    # which is the cache's default
    assert toy.contradiction("prefill", {"batch": 2}) == "two in float16"
    assert toy.contradiction("prefill", {"batch": 2, "kv": "f32"}) is None
    assert toy.contradiction("decode", {}) is None


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"type": "hello", "protocol": 1},
        {"type": "hello", "protocol": 2, "bases": 3},
    ],
)
def test_a_hello_of_another_version_is_refused(hello):
    with pytest.raises(CaptureError):
        EngineDescription.of("toy", hello)


def test_the_worked_example_of_the_documents_is_an_engine(tmp_path):
    """As it is there, next to the library that it is written for."""
    page = (ROOT / "docs" / "contributing" / "engine.md").read_text(
        encoding="utf-8",
    )
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "adapter.py").write_text(example)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nclass Model:\n    vocab = 4\n    def __init__(self, folder, cache):"
        " self.cache = cache\n    def logits(self, ids): return np.full((len(ids), 4),"
        " float(self.cache[1:]), np.float32)\n",
    )
    with EngineProcess("mine", sys.executable, tmp_path / "adapter.py") as process:
        described = EngineDescription.of("mine", process.hello)
        assert described.syntax("modifier") == "kv:f16|f32"
        assert process.load({"model": "m", "modifiers": {"kv": "f32"}})["vocab"] == 4
        (rows,) = process.run([1, 2, 3])
    assert rows.bits.view(np.float32).tolist() == [[32.0] * 4] * 3
