"""The four jobs of the design, walked as their people would: from the start page, from a shell, from somebody's
link.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.driving import ROOT, Dashboard, open_saved, picture, settle
from tests.core.judging.engine_dumps import ROWS, in_bfloat16, in_float32, saved, states, with_fault

X, HEAD = states()


def core(dashboard: Dashboard, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line on the dashboard's store."""
    return subprocess.run(
        [sys.executable, "-m", "core", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ULPSCOPE_STORE": str(dashboard.store)},
    )


def test_an_inference_engineer_uploads_a_dump_and_the_control_it_asks_for(
    page: Page, dashboard: Dashboard, tmp_path: Path
):
    """'Run 1 differs from run 2: is my KV reuse broken?'"""
    dump = saved(
        tmp_path / "reuse.npz",
        reference=in_bfloat16(X, HEAD, 1),
        variant=in_bfloat16(with_fault(X), HEAD, 2),
        token_ids=np.arange(ROWS),
    )
    pair = saved(tmp_path / "reuse32.npz", reference=in_float32(X, HEAD, 1), variant=in_float32(with_fault(X), HEAD, 2))
    page.goto(f"{dashboard.url}/upload")
    settle(page)
    page.locator("input[type=file]").first.set_input_files(dump)
    page.get_by_role("button", name="Save as a run").click(timeout=20_000)
    open_saved(page, "reuse")
    expect(page.locator("h1")).to_have_text("Overview")
    settle(page)
    expect(page.get_by_text("likely rounding").first).to_be_visible()
    run_id = page.url.split("run=")[1].split("&")[0]
    expect(page.get_by_text(f"ulpscope verdict {run_id} --float32 PAIR_IN_FLOAT32.npz").last).to_be_visible()
    picture(page, "job-1-undecided")

    done = core(dashboard, "verdict", run_id, "--float32", pair, "--json")  # what the page told them to type
    assert done.returncode == 1, done.stderr
    judged = json.loads(done.stdout)["run_id"]
    page.goto(f"{dashboard.url}/overview?run={judged}")
    settle(page)
    expect(page.get_by_text("bug suspected").first).to_be_visible()
    page.get_by_text("Report for an issue thread").click()
    expect(page.get_by_text("| failed | float32 comparison |").first).to_be_visible()
    picture(page, "job-1-judged")


@pytest.mark.thorough
def test_a_qa_engineer_finds_what_moved_the_golden_test(page: Page, dashboard: Dashboard, tmp_path: Path):
    """'The golden test moved.' The gate fails in a shell; the stored dump shows which tokens flipped."""
    golden, today = in_bfloat16(X, HEAD, 1), in_bfloat16(X, HEAD, 1)
    best, second = np.argsort(-golden[17])[:2]
    today[17, [best, second]] = today[17, [second, best]]
    files = [saved(tmp_path / f"{name}.npz", logits=logits) for name, logits in (("golden", golden), ("today", today))]
    done = core(dashboard, "compare", *files, "--fail-on", "flips")
    assert done.returncode == 1
    assert "gate failed" in done.stderr
    stored = core(dashboard, "ingest", *files, "--json")
    run_id = json.loads(stored.stdout)["run_id"]
    page.goto(f"{dashboard.url}/flips?run={run_id}&position=0")
    settle(page)
    expect(page.get_by_text("1 flip in 48 positions").first).to_be_visible()
    page.get_by_role("button", name="Go to the first flip, position 17").click()
    settle(page)
    assert "position=17" in page.url
    picture(page, "job-2-flip")


@pytest.mark.thorough
def test_a_kernel_author_learns_where_a_fault_enters(page: Page, dashboard: Dashboard):
    """'Where does it first differ?' From the start page, over the injected bug."""
    page.goto(f"{dashboard.url}/overview?run=injected-bug")
    settle(page)
    expect(page.get_by_text("First place: position 16").first).to_be_visible()
    expect(page.locator(".st-key-floor_ratio_float32 .js-plotly-plot")).to_be_visible()  # the failed check is open
    picture(page, "job-3-place")
