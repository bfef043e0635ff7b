"""The upload page from the moment the bytes are there: what a file holds, options, saving, and a
save that fails.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from app.shell import store_changes
from app.upload import tab as upload_page
from app.upload.spool import Upload
from core.checks.narrowing import AGAINST_EXACT
from core.runs.reader import RunReader
from tests.app.opening import click, enter, open_page, page_text, table_of
from tests.core.responses.made_sides import run_of
from tests.core.runs.dumps.made_dumps import logits
from tests.places import CASES, PAYLOADS, ROOT, RUNS
from tests.waiting import until

DUMPS = ROOT / "sample_runs" / "dumps"


@pytest.fixture(autouse=True)
def store(imports_here):
    return imports_here


def put(store, path, name="", part=1.0):
    """A file that has arrived, or a part of it."""
    content = path.read_bytes()
    upload = Upload(store, f"id of {name or path.name}")
    record = upload.begin(name or path.name, len(content))
    upload.path(record).write_bytes(content[: int(len(content) * part)])
    return upload


def page(monkeypatch, *uploads):
    """The page of a viewer whose browser says that these have arrived."""
    # the panel is a component of the browser, of which AppTest runs nothing
    monkeypatch.setattr(
        upload_page,
        "draw_panel",
        lambda serial: [upload.upload_id for upload in uploads],
    )
    return open_page("upload")


def choose(app, what, key, value):
    enter(app, "selectbox", f"upload_{what}_{key}", value)


def save(app, key, state="done"):
    click(app, f"save_{key}")
    until(lambda: store_changes.jobs().all("upload")[0].is_over)
    assert store_changes.jobs().all("upload")[0].state == state
    return app.run()


def stored(store):
    (path,) = store.directory.glob("*.duckdb")
    return RunReader(path)


def key_of(*uploads):
    return "_".join(upload.upload_id for upload in uploads)


def test_nothing_arrived_is_an_explanation(monkeypatch, store):
    half = put(store, DUMPS / "six_calls.npz", part=0.5)
    app = page(monkeypatch, half, Upload(store, "../../x"))
    assert "Keys are side names" in page_text(app)


def test_a_dump_shows_its_sides_and_is_saved_with_the_options(monkeypatch, store):
    upload = put(store, DUMPS / "six_calls.npz")
    key = key_of(upload)
    app = page(monkeypatch, upload)
    assert table_of(app)["side"].tolist() == [f"call_{number}" for number in range(1, 7)]
    assert table_of(app)["array"][0] == "float32 [1, 4096]"
    enter(app, "text_input", f"upload_name_{key}", "Six calls")
    enter(app, "text_input", f"upload_model_{key}", "org/model")
    choose(app, "reference", key, "call_3")
    app = save(app, key)
    with stored(store) as run:
        assert run.header.name == "Six calls"
        assert run.header.provenance.model == "org/model"
        assert run.header.sides[0].name == "call_3"
    assert "**Six calls** — done" in page_text(open_page("upload"))
    assert not list(store.directory.glob(".uploads/*/data/*"))
    click(app, "open_1")
    assert app.title[0].value == "Overview"


def _padded(path):
    np.savez(path, hf=np.eye(6, 32, dtype=np.float32), engine=np.eye(6, 40, dtype=np.float32))


def _wide(path):
    np.savez(path, reference=np.float32([[1.1, 2.0]]), variant=np.float32([[1.1, 2.5]]))


@pytest.mark.parametrize(
    ("make", "wrong", "words", "right"),
    [
        (_padded, ("holds", ""), "padded by 8 tokens", ("holds", "padded")),
        (
            _wide,
            ("dtype", "bfloat16"),
            "which is no bfloat16 value",
            ("dtype", "detected when saved"),
        ),
    ],
)
def test_a_save_that_fails_says_why_and_the_file_is_offered_again(
    monkeypatch,
    store,
    make,
    wrong,
    words,
    right,
    tmp_path,
):
    make(tmp_path / "dump.npz")
    upload = put(store, tmp_path / "dump.npz")
    key = key_of(upload)
    app = page(monkeypatch, upload)
    choose(app, wrong[0], key, wrong[1])
    app = save(app, key, "failed")
    assert words in app.error[-1].value
    choose(app, right[0], key, right[1])
    save(app, key)
    stored(store).close()


def test_files_of_one_array_make_a_pair_one_alone_waits_and_of_three_two_are_chosen(
    monkeypatch,
    store,
    tmp_path,
):
    uploads = []
    for name in ("before", "after", "later"):
        path = tmp_path / f"{name}.npy"
        np.save(path, logits(0, (4, 16)))
        uploads.append(put(store, path))
    assert "one array" in page(monkeypatch, uploads[0]).error[0].value
    pair = page(monkeypatch, *uploads[:2])
    assert table_of(pair)["side"].tolist() == ["before", "after"]
    three = page(monkeypatch, *uploads)
    chosen = [uploads[2].upload_id, uploads[1].upload_id]
    enter(three, "multiselect", "upload_pair", chosen)
    save(three, key_of(uploads[2], uploads[1]))
    with stored(store) as run:
        assert [side.name for side in run.header.sides] == ["later", "after"]


def test_several_files_are_several_runs_and_a_bad_one_hinders_none(monkeypatch, store, tmp_path):
    (tmp_path / "odd.npz").write_bytes(b"no dump at all")
    uploads = [
        put(store, DUMPS / "six_calls.npz"),
        put(store, tmp_path / "odd.npz"),
        put(store, CASES / "bf16_upcast_to_fp32.npz"),
    ]
    app = page(monkeypatch, *uploads)
    assert ["odd\\.npz" in error.value for error in app.error] == [True]
    for upload in (uploads[0], uploads[2]):
        app = save(app, key_of(upload))
    assert len(list(store.directory.glob("*.duckdb"))) == 2


def test_a_run_file_becomes_a_run_of_its_own_name(monkeypatch, store, tmp_path):
    original = RUNS / "injected-bug.duckdb"
    upload = put(store, Path(shutil.copy(original, tmp_path / "theirs.duckdb")))
    save(page(monkeypatch, upload), key_of(upload))
    with stored(store) as run, RunReader(original) as theirs:
        assert run.header.name == theirs.header.name


def test_responses_of_two_servers_are_one_run(monkeypatch, store):
    answer = PAYLOADS / "llamacpp_completion.json"
    uploads = [put(store, answer, f"{name}.json") for name in ("old", "new")]
    app = page(monkeypatch, *uploads)
    enter(app, "text_input", f"upload_name_{key_of(*uploads)}", "before and after")
    app = save(app, key_of(*uploads))
    (path,) = store.directory.glob("*.duckdb")
    run = run_of(path)
    assert run.header.name == "before and after"
    click(app, "open_1")
    assert app.title[0].value == "Overview"


def test_a_senders_names_are_rendered_inert(monkeypatch, store, tmp_path):
    sides = dict.fromkeys(["[y](http://e)", "<i>"], np.ones((1, 2), np.float32))
    np.savez(tmp_path / "d.npz", **sides)
    app = page(monkeypatch, put(store, tmp_path / "d.npz", "[x](http:e) <b>*s*.npz"))
    raw = "\n".join(str(each.value) for each in app.markdown)
    assert "[x](" not in raw
    assert "<b>" not in raw.replace("\\<b", "")


def test_a_third_file_may_hold_the_exact_result_of_a_pair(monkeypatch, store, tmp_path):
    exact = logits(0, (4, 64))
    uploads = []
    for name, step in {"a": 2.0**-6, "b": 2.0**-7, "exact": None}.items():
        values = exact if step is None else np.round(exact / step) * step
        dtype = np.float32 if step is None else np.float16
        np.save(tmp_path / f"{name}.npy", values.astype(dtype))
        uploads.append(put(store, tmp_path / f"{name}.npy"))
    *pair, third = uploads
    app = page(monkeypatch, *uploads)
    choose(app, "exact", key_of(*pair), third.upload_id)
    save(app, key_of(*pair))
    with stored(store) as run:
        assert [side.name for side in run.sides] == ["a", "b"]
        assert AGAINST_EXACT in [row.check for row in run.evidence(0)]
