"""Pages on the real sample runs, in Streamlit's own test harness: no browser, but every line of
every page runs.
"""

import shutil
from dataclasses import replace

import pytest

from app import navigation
from core.judging.ingest import ingest
from core.runs.file.records import KEEPS
from core.runs.store.store import open_store
from tests.app.opening import open_page, page_text
from tests.core.runs.made_runs import header_of, write_run
from tests.core.runs.store import s3_server
from tests.covering import covering, thorough
from tests.places import CASES, ROOT, RUNS

PAGES = {page.name: page for page in navigation.PAGES}
SAMPLES = ["fresh-against-cached", "batch-1-against-n", "float32-three-paths", "where-it-starts"]

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.mark.spread(12)
@pytest.mark.parametrize(
    ("run", "page"),
    covering(SAMPLES, list(PAGES), whole=("where-it-starts",)),
)
def test_every_page_draws_every_sample_run(page, run):
    app = open_page(page, run=run)
    assert not app.error
    assert app.title[0].value == PAGES[page].title
    assert app.query_params["run"] == run


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_an_empty_state(page, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    app = open_page(page)
    assert ("No runs yet" in page_text(app)) == (page == "runs" or PAGES[page].shows != "store")


@pytest.mark.parametrize(
    "case",
    [
        "nonfinite_fp32",
        *thorough(["six_repeats_bf16", "one_ulp_bf16_void", "flips_fp16", "bf16_upcast_to_fp32"]),
    ],
)
def test_every_page_draws_a_dump_of_every_form(case, own_store):
    run_id = ingest(own_store, [CASES / f"{case}.npz"])
    for page in PAGES:
        open_page(page, run=run_id, position="3" if case != "six_repeats_bf16" else "0")


def kept_runs(store):
    """A run with its logits, one with figures only."""
    header = header_of("float32", (12,), 64)
    for kept in KEEPS:
        write_run(store, replace(header, keep=kept), run_id=f"kept-{kept}")


@pytest.mark.spread(8)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("kept", KEEPS)
def test_every_page_draws_what_there_is_and_says_what_is_kept(built, monkeypatch, page, kept):
    monkeypatch.setenv("ULPSCOPE_STORE", str(built(kept_runs)))
    app = open_page(page, run=f"kept-{kept}", position="5")
    assert not app.error
    has_note = kept != "all" and PAGES[page].shows != "store"
    assert ("figures only, no logits" in page_text(app)) == has_note


def test_a_damaged_block_of_logits_is_a_sentence_on_the_page(own_store):
    own_store.directory.mkdir()
    damaged = bytearray((RUNS / "batch-1-against-n.duckdb").read_bytes())
    for place in range(1_000_000, 9_000_000, 5_000):  # logits
        damaged[place] ^= 0x40
    (own_store.directory / "damaged.duckdb").write_bytes(damaged)
    for page in ("overview", "near_ties", "heatmap"):
        app = open_page(page, run="damaged")
        assert "damaged.duckdb" in "".join(str(each.value) for each in app.error).replace(
            "\\",
            "",
        ), page


@pytest.mark.parametrize("page", ["runs", "overview", "flips"])
def test_pages_draw_a_run_of_a_store_of_objects_that_another_machine_filled(
    page,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    shutil.copy(ROOT / "sample_runs" / "injected-bug.duckdb", tmp_path / "one.duckdb")
    with s3_server.served() as (server, _):
        s3_server.set_environment(monkeypatch, server)
        monkeypatch.setenv("ULPSCOPE_STORE", f"s3://{s3_server.BUCKET}/{page}/runs")
        monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "there"))
        open_store().place(tmp_path / "one.duckdb", "injected-bug")
        monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "here"))
        app = open_page(page, run="injected-bug")
    assert not app.error
    assert app.title[0].value == PAGES[page].title
