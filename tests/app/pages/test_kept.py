"""Pages over runs that keep less than all of their logits: drawn as far as that goes, and said everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from core.runs.file.keep import KEEPS, note
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.app.opening import open_page, plain
from tests.app.pages.test_every_page import PAGES


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run of every kind: 12 positions of 64 tokens, which flip at position 5."""
    found = Store(tmp_path_factory.mktemp("kept"))
    logits = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32) * 3
    other = logits + np.float32(1e-3)
    best = int(logits[5].argmax())
    other[5, (best + 1) % 64] = logits[5, best] + 1
    for kept in KEEPS:
        sides = (SideHeader("prefill", "prefill", "float32"), SideHeader("decode", "decode", "float32"))
        header = RunHeader(kept, "float32", 64, (Prompt(12),), sides, Provenance("capture"), keep=kept)
        with RunWriter(found, header, run_id=f"kept-{kept}") as writer:
            for side, array in enumerate((logits, other)):
                writer.write(side, 0, array.view(np.uint32))
            writer.finish()
    return found.directory


@pytest.mark.spread(12)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("kept", [kept for kept in KEEPS if kept != "all"])
def test_every_page_draws_what_there_is_and_says_what_is_kept(store, monkeypatch, page, kept):
    monkeypatch.setenv("ULPSCOPE_STORE", str(store))
    for position in ("0", "5"):
        app = open_page(page, run=f"kept-{kept}", position=position)
        assert not app.error
        assert (note(kept) in plain(app)) == (PAGES[page].shows != "store")


def test_a_run_that_keeps_all_says_nothing_of_it(store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_STORE", str(store))
    app = open_page("heatmap", run="kept-all", position="0")
    assert "Kept:" not in plain(app)
    assert "cannot be shown" not in plain(app)


def test_the_heatmap_says_why_single_logits_are_not_shown(store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_STORE", str(store))
    assert "figures only, no logits" in plain(open_page("heatmap", run="kept-figures", position="0"))
