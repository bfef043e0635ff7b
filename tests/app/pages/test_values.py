"""A run of values that are no logits, on the pages of every run."""

import numpy as np
import pytest
from transformers import BertModel

from core.capture_request import CaptureRequest
from core.commands.capturing import plan_of, run_plan
from core.judging.ingest import ingest
from core.progress import no_progress
from tests.app.opening import metrics, open_page
from tests.core.inference.tiny_encoders import TEXTS, write

PAGES = ("overview", "heatmap", "compare", "internals", "runs", "machine")
ROWS = np.random.default_rng(4).normal(size=(30, 40)).astype(np.float32)
NEAR = np.nextafter(ROWS, np.float32(9))
NEAR[4, 7] = np.nan


def fill(store):
    dumps = {
        "embeddings": (ROWS, NEAR),
        "scores": (ROWS[:, 0], np.roll(ROWS[:, 0], 1)),
        "hidden": (ROWS.reshape(3, 10, 40), NEAR.reshape(3, 10, 40)),
        "equal": (ROWS, ROWS),
    }
    for name, sides in dumps.items():
        path = store.directory / f"{name}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, reference=sides[0], variant=sides[1])
        ingest(store, [path], holds="values", run_id=name)
    model = write(store.directory / "model", BertModel)
    request = CaptureRequest(
        model=str(model),
        prompts=tuple(TEXTS),
        reference="encode",
        variants=("encode+pad:right:3",),
        judge=True,
    )
    run_plan(plan_of(request), store, no_progress, "encoded")


@pytest.fixture(autouse=True)
def runs(built, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_STORE", str(built(fill)))


@pytest.mark.parametrize(
    "run",
    ["embeddings", "scores", "hidden", "equal", "encoded"],
)
@pytest.mark.parametrize("page", PAGES)
def test_every_page_draws_values(page, run):
    unfolded = ("more_figures", "provenance", "report")
    app = open_page(page, unfolded if page == "overview" else (), run=run)
    assert not app.error or run in ("embeddings", "hidden")
    shown = metrics(app)
    assert not {"Flips", "Near ties", "Mean KL", "Exact ties"} & shown.keys() or run == "scores"
    assert "undefined" not in shown.values()
    assert not [heading.value for heading in app.subheader if "token" in heading.value.lower()]


@pytest.mark.parametrize("page", ["flips", "near_ties"])
def test_pages_about_tokens_say_that_there_are_none(page):
    app = open_page(page, run="embeddings")
    assert len(app.info) == 1
    assert not app.dataframe
    assert not app.error


def test_the_overview_leads_with_cosines_and_neighbors_or_the_order():
    embeddings, scores = (
        metrics(open_page("overview", run=run)) for run in ("embeddings", "scores")
    )
    # 30 rows, less the one with a NaN
    assert embeddings["Nearest neighbors that change"] == "0 of 29 (0.0%)"
    # an ULP of float32 turns a row by 1e-7 at most, and 1 - cosine is half of its square
    assert float(embeddings["Largest 1 - cosine"]) < 1e-12
    before = ROWS[:, 0]
    after = np.roll(before, 1)
    is_swapped = (before[:, None] < before) != (after[:, None] < after)
    swapped = np.triu(is_swapped, 1).sum()
    # 30 x 29 / 2 pairs
    assert scores["Pairs that change order"].startswith(f"{swapped} of 435")
