"""Peak memory of capturing a prompt of 4096 tokens over a vocabulary of 128256, over the same
process with the model loaded.
"""

from __future__ import annotations

from benchmarks.scratch import figures_of_child, scratch
from benchmarks.timing import Line

TOKENS = 4096
PATHS = {
    "prefill and chunked:512": ("prefill", "chunked:512"),
    "prefill and prefill+batch:16": ("prefill", "prefill+batch:16"),
    "prefill and transformers:prefill, another process": ("prefill", "transformers:prefill"),
}
SIDE_FLOAT32 = TOKENS * 128256 * 4

_CHILD = """
import sys
from pathlib import Path
from benchmarks.random_models import random_model, random_prompt
from core.capture_request import CaptureRequest
from core.inference.capture.capture import plan_capture, run_capture
from core.runs.store.store import Store
from core.runs.writer import RunWriter

def status(key):  # VmHWM, not ru_maxrss: a child inherits its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

store, tokens, reference, variant = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
loaded = random_model("wide", device="cpu")

def capture(positions):
    request = CaptureRequest(model=loaded.name, reference=reference, variants=(variant,))
    plan = plan_capture(loaded, [random_prompt(loaded, positions)], request)
    with RunWriter(Store(store), plan.header) as writer:
        run_capture(plan, writer)
        Store(store).delete(writer.finish())

capture(16)  # compiled kernels and thread pools belong to an idle process
idle = status("VmRSS")
capture(tokens)
print(idle, status("VmHWM"))
"""


def run() -> list[Line]:
    lines = []
    for name, (reference, variant) in PATHS.items():
        with scratch() as folder:
            idle, peak = figures_of_child(_CHILD, folder, TOKENS, reference, variant)
        lines.append(
            Line(
                f"memory, capture of {name}",
                "<= 2000 MB",
                f"{(peak - idle) / 1024:.0f} MB",
                f"peak {peak / 1024:.0f} MB over {idle / 1024:.0f} MB with the model loaded; one"
                f" side in float32 is {SIDE_FLOAT32 / 1e6:.0f} MB",
            ),
        )
    return lines
