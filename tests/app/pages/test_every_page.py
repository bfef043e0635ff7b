"""Pages on the real sample runs, in Streamlit's own test harness: no browser, but every line of every page runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import navigation
from core.runs.store.store import open_store
from tests.app.opening import followed
from tests.covering import covering, thorough

ROOT = Path(__file__).resolve().parents[3]
PAGES = {page.name: page for page in navigation.PAGES}
SAMPLES = ["fresh-against-cached", "batch-1-against-n", "float32-three-paths", "where-it-starts"]

pytestmark = pytest.mark.usefixtures("own_store")


def opened(page: str, **link: str) -> AppTest:
    """The page of a new viewer who followed a link."""
    return followed(page, **link).run()


def said(app: AppTest) -> str:
    """All text of the page."""
    kinds = ("title", "markdown", "caption", "info", "success", "warning", "error", "subheader")
    return "\n".join(str(element.value) for kind in kinds for element in getattr(app, kind))


def plain(app: AppTest) -> str:
    """The same as a reader sees it, without the signs that keep names of others from being markdown."""
    return said(app).replace("\\", "")


@pytest.mark.spread(12)
@pytest.mark.parametrize(("run", "page"), covering(SAMPLES, list(PAGES), whole=("where-it-starts",)))
def test_every_page_draws_every_sample_run(page, run):
    app = opened(page, run=run)
    assert not app.exception
    assert not app.error
    assert app.title[0].value == PAGES[page].title
    assert app.query_params["run"] == run


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_an_empty_state(page, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    app = opened(page)
    assert not app.exception
    assert ("No runs yet" in said(app)) == (page == "runs" or PAGES[page].shows != "store")


def test_the_address_says_what_is_shown():
    app = opened("overview", run="batch-1-against-n", variant="decode+batch:8", position="41")
    assert app.query_params["variant"] == "decode+batch:8"
    assert app.query_params["position"] == "41"
    assert "Top tokens at position 41" in said(app)


def test_changing_the_position_changes_the_address():
    app = opened("overview", run="batch-1-against-n")
    app.number_input(key="position").set_value(17).run()
    assert app.query_params["position"] == "17"
    assert "Top tokens at position 17" in said(app)


def test_the_first_flip_can_be_reached_from_the_flips_page():
    app = opened("flips", run="fresh-against-cached", position="0")
    next(button for button in app.button if "first flip" in button.label).click().run()
    assert not app.exception
    assert "Why it could flip" in said(app)
    assert app.query_params["position"] == "144"


def test_a_bit_identical_pair_is_said_to_be_one(tmp_path, own_store):
    from core.judging.ingest import ingest

    run_id = ingest(own_store, [ROOT / "tests" / "cases" / "identical_bf16_bits.npz"])
    for page in PAGES:
        app = opened(page, run=run_id)
        assert not app.exception, page
    assert "Bit-identical" in said(opened("overview", run=run_id))
    assert "No flips" in said(opened("flips", run=run_id))


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "case",
    ["nonfinite_fp32", "six_repeats_bf16", *thorough(["one_ulp_bf16_void", "flips_fp16", "bf16_upcast_to_fp32"])],
)
def test_every_page_draws_a_dump_of_every_form(case, own_store):
    from core.judging.ingest import ingest

    run_id = ingest(own_store, [ROOT / "tests" / "cases" / f"{case}.npz"])
    for page in PAGES:
        app = opened(page, run=run_id, position="3" if case != "six_repeats_bf16" else "0")
        assert not app.exception, (page, [e.value for e in app.exception])


def test_nan_mismatches_are_called_more_than_rounding(own_store):
    from core.judging.ingest import ingest

    run_id = ingest(own_store, [ROOT / "tests" / "cases" / "nonfinite_fp32.npz"])
    assert "rounding cannot produce it" in said(opened("overview", run=run_id))
    assert "order of summation" not in said(opened("overview", run="fresh-against-cached"))


def test_a_broken_file_is_named_and_harms_no_other_run(own_store):
    own_store.directory.mkdir()
    (own_store.directory / "broken.duckdb").write_bytes(b"not a database")
    shutil.copy(ROOT / "tests" / "runs" / "batch-1-against-n.duckdb", own_store.directory / "copy.duckdb")
    app = opened("runs")
    assert not app.exception
    assert "broken.duckdb" in plain(app)
    assert "7 of 7 runs" in said(app)


def test_run_names_and_token_texts_are_rendered_inert(own_store):
    import numpy as np

    from core.judging.ingest import ingest

    own_store.directory.mkdir()
    dump = own_store.directory / "evil.npz"
    logits = np.random.default_rng(0).standard_normal((2, 8), dtype=np.float32)
    np.savez(
        dump,
        **{"<b>a</b>": logits, "[x](javascript:alert(1))": logits + 1},
        token_ids=[1, 2],
        tokens=["<img src=x>", "$$\\x$$"],
    )
    run_id = ingest(own_store, [dump], name="<script>alert(1)</script> [link](http://x)")
    for page in PAGES:
        app = opened(page, run=run_id)
        assert not app.exception
        assert "<script>" not in said(app).replace("\\<script\\>", "")
        assert "[link](" not in said(app)


def test_a_damaged_block_of_logits_is_a_sentence_on_the_page(own_store):
    own_store.directory.mkdir()
    damaged = bytearray((ROOT / "tests" / "runs" / "batch-1-against-n.duckdb").read_bytes())
    for place in range(200_000, 9_000_000, 5_000):  # logits; figures lie behind them
        damaged[place] ^= 0x40
    (own_store.directory / "damaged.duckdb").write_bytes(damaged)
    for page in ("overview", "near_ties", "heatmap"):
        app = opened(page, run="damaged")
        assert not app.exception, page
        assert any("damaged.duckdb" in str(error.value).replace("\\", "") for error in app.error), page


def test_nan_is_never_outlined_as_the_argmax(own_store):
    from core.judging.ingest import ingest
    from core.runs.reader import RunReader
    from core.runs.views.elements import top_of_both

    with RunReader(own_store.path_of(ingest(own_store, [ROOT / "tests" / "cases" / "nonfinite_fp32.npz"]))) as run:
        for position in range(run.header.rows):
            top = top_of_both(run, 0, 0, position)
            for side in ("reference", "variant"):
                best = top[top[f"{side}_rank"] == 1]
                assert len(best) == 1
                assert best[f"{side}_logit"].notna().all()


@pytest.mark.spread(5)
@pytest.mark.parametrize("page", PAGES)
def test_every_page_draws_a_run_of_a_store_of_objects_that_another_machine_filled(page, tmp_path, monkeypatch):
    address = f"file://{tmp_path}/bucket"
    monkeypatch.setenv("ULPSCOPE_STORE", address)
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "there"))
    shutil.copy(ROOT / "sample_runs" / "injected-bug.duckdb", tmp_path / "one.duckdb")
    open_store().place(tmp_path / "one.duckdb", "injected-bug")
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "here"))
    app = opened(page, run="injected-bug")
    assert not app.exception
    assert not app.error
    assert app.title[0].value == PAGES[page].title
