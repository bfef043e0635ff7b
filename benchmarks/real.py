"""SmolLM2-135M and its sample runs: what a capture and a judgement cost over the forwards that they cannot do without,
how soon the dashboard stands, and how soon each page.
"""

from __future__ import annotations

import socket
import statistics
import time

import torch

from app.main import PAGES
from benchmarks.scratch import scratch
from benchmarks.serving.visits import Chromium, paints
from benchmarks.timing import Line, interleaved
from core.errors import CaptureError
from core.inference.capture.capture import plan_capture, run_capture
from core.inference.controls.judge_model import judge_pair
from core.inference.models.model import load_model
from core.inference.paths.batch import ignore
from core.inference.paths.engines import side_of
from core.packaged_models import packaged_folder
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.browser.driving import start

TOKENS = 126
ROUNDS = 3
STARTS = 3
FRESH = "fresh-against-cached"
OF_PAGE = {
    "layers": "where-it-starts",
    "kernels": "where-it-starts",
    "remedies": "where-it-starts",
    "repeats": "batch-1-against-n",
}


def run() -> list[Line]:
    return [*_forwards("bfloat16"), *_forwards("float32"), *_pages()]


def _forwards(dtype: str) -> list[Line]:
    """Capture and judgement of prefill and decode over their two bare forwards."""
    try:
        folder = packaged_folder("smollm2")
    except CaptureError as error:
        return [Line(f"SmolLM2, {dtype}", "", "not run", str(error))]
    loaded = load_model(str(folder), dtype=dtype, device="cpu")
    ids = torch.randint(17, loaded.token_limit, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    plan = plan_capture(loaded, [ids], "prefill", ["decode"])

    def bare() -> None:
        with torch.inference_mode():
            for path in plan.paths:
                side_of(str(path)).run_on(loaded)(ids, ignore)

    with scratch() as name:
        store = Store(name)

        def capture() -> None:
            with RunWriter(store, plan.header) as writer:
                run_capture(plan, writer)
                store.delete(writer.finish())

        bare()

        def judge() -> None:
            judge_pair(loaded, plan.token_ids, "prefill", "decode", until_decided=True)

        def ask_everything() -> None:
            judge_pair(loaded, plan.token_ids, "prefill", "decode")

        turns = {"bare": bare, "capture": capture, "judge": judge, "everything": ask_everything}
        seconds = interleaved(turns, ROUNDS)
    how = f"over {seconds['bare']:.2f} s of both bare forwards, {TOKENS} tokens, {dtype}; medians of {ROUNDS}"
    return [
        Line(
            f"{what} of prefill and decode, SmolLM2 in {dtype}",
            f"<= {aim}x" if aim else "",
            f"{seconds[name] / seconds['bare']:.2f}x",
            f"{seconds[name]:.1f} s {how}",
        )
        for what, name, aim in (
            ("capture", "capture", 1.15),
            ("judgement until it is decided", "judge", 4),
            ("judgement with every control", "everything", None),
        )
    ]


def _pages() -> list[Line]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with scratch() as folder, Chromium(folder / "profile") as browser:
        seconds: list[float] = []
        for _ in range(1 + STARTS):
            began = time.perf_counter()
            dashboard = start(folder / "runs", port=port)
            ready = time.perf_counter() - began
            seconds.append(ready + browser.visit(dashboard.url)["painted"] / 1e3)
            if len(seconds) <= STARTS:
                dashboard.process.terminate()
                dashboard.process.wait(20)
        lines = [
            Line(
                "start to first page painted",
                "<= 1.5 s",
                f"{statistics.median(seconds[1:]):.2f} s",  # the first sets the machine up
                "the server's process begins, listens, and the list of runs is painted in a browser that was at this"
                f" address before; median of {STARTS}",
            )
        ]
        for name in (page.name for page in PAGES):
            url = f"{dashboard.url}/{'' if name == 'runs' else name}?run={OF_PAGE.get(name, FRESH)}"
            lines.append(paints(browser, f"{name}, SmolLM2", f"{url}&with=injected-bug" if name == "compare" else url))
        dashboard.process.terminate()
        dashboard.process.wait(20)
    return lines
