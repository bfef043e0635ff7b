"""The upload page from the moment the bytes are there: what was understood, what may be corrected, saving, and what is
left when that fails.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

from app.shell import store_changes
from app.shell.jobs import Jobs
from app.upload import inspections as looking
from app.upload import panel
from app.upload.inspections import Looks
from app.uploads.partial_file import Upload, UploadError, Writing, held
from app.uploads.saving import save
from app.uploads.spool import FOLDER, Spool, owner_of
from core.configuration import Limits
from core.runs.reader import RunReader
from core.runs.sparse_run import sparse_of
from core.runs.store.store import Store
from tests.app.api.conftest import run_here
from tests.app.opening import opened, said
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
DUMPS = ROOT / "sample_runs" / "dumps"
PAYLOADS = ROOT / "tests" / "core" / "runs" / "sparse" / "payloads"
ME = owner_of("local")
LIMITS = dataclasses.replace(Limits(), free_bytes=0)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> Iterator[Store]:
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    store_changes.jobs.clear()
    monkeypatch.setattr(Jobs, "warm", lambda self: None)  # a process a test that nobody would use
    yield Store(tmp_path / "runs")
    store_changes.jobs().stop()
    store_changes.jobs.clear()


def put(store: Store, path: Path, owner: str = ME, name: str = "", part: float = 1.0) -> Upload:
    """A file that has arrived, or a part of it."""
    content = path.read_bytes()
    upload = Spool(store).create(owner, name or path.name, len(content), LIMITS)
    writing = Writing(upload)
    writing.write(0, content[: int(len(content) * part)])
    writing.close()
    return upload


def page(monkeypatch: pytest.MonkeyPatch, *uploads: Upload) -> AppTest:
    """The page of a viewer whose browser says that these have arrived."""
    monkeypatch.setattr(panel, "chosen", lambda serial: [upload.upload_id for upload in uploads])
    return opened("upload")


def saved(app: AppTest, jobs: int = 1) -> AppTest:
    until(lambda: [job.is_over for job in store_changes.jobs().ingests()] == [True] * jobs)
    return app.run()


def runs(store: Store) -> list[Path]:
    return sorted(store.directory.glob("*.duckdb"))


def test_nothing_arrived_is_an_explanation(monkeypatch):
    app = page(monkeypatch)
    assert "Keys are side names" in said(app)


def test_a_dump_is_understood_corrected_and_saved_by_a_job_that_every_viewer_sees(monkeypatch, store):
    upload = put(store, DUMPS / "six_calls.npz")
    app = page(monkeypatch, upload)
    assert "Understood as" in [each.value for each in app.subheader]
    assert "**1 position x 4,096 tokens**, no tokens" in said(app)
    assert "compute dtype **bfloat16** (detected" in said(app)
    app.text_input(key=f"upload_name_{upload.upload_id}").set_value("Six calls").run()
    app.text_input(key=f"upload_model_{upload.upload_id}").set_value("org/model").run()
    app.selectbox(key=f"upload_reference_{upload.upload_id}").select("call_3").run()
    assert app.dataframe[0].value["side"].tolist() == ["call_3", "call_1", "call_2", "call_4", "call_5", "call_6"]
    app.button(key=f"save_{upload.upload_id}").click().run()
    assert not app.exception
    app = saved(app)
    assert (
        "--known-dtype=bfloat16" in store_changes.jobs().ingests()[0].arguments
    )  # so that nothing is read for it again
    (path,) = runs(store)
    with RunReader(path) as run:
        assert run.header.name == "Six calls"
        assert run.header.provenance.model == "org/model"
        assert run.header.sides[0].name == "call_3"
    assert "**Six calls** — done" in said(opened("upload"))
    assert list((store.directory / FOLDER).glob("*/file/*")) == []
    app.button(key="open_1").click().run()
    assert app.title[0].value == "Overview"


def test_a_compute_dtype_that_does_not_hold_the_values_is_a_sentence_and_no_save(monkeypatch, store, tmp_path):
    np.savez(tmp_path / "wide.npz", reference=np.float32([[1.1, 2.0]]), variant=np.float32([[1.1, 2.5]]))
    upload = put(store, tmp_path / "wide.npz")
    app = page(monkeypatch, upload)
    app.selectbox(key=f"upload_dtype_{upload.upload_id}").select("bfloat16").run()
    assert "which is no bfloat16 value" in app.error[0].value
    assert not [button for button in app.button if str(button.key).startswith("save_")]


def test_what_looks_like_chosen_tokens_is_refused_until_the_user_says_that_it_is_logits(monkeypatch, store, tmp_path):
    chosen = [-np.random.default_rng(seed).gamma(0.5, 2.0, (90, 32)).astype(np.float32) for seed in (1, 2)]
    np.savez(tmp_path / "chosen.npz", reference=chosen[0], variant=chosen[1])
    upload = put(store, tmp_path / "chosen.npz")
    app = page(monkeypatch, upload)
    assert "of 90 sequences of 32 tokens" in app.error[0].value
    assert not [button for button in app.button if str(button.key).startswith("save_")]
    monkeypatch.setattr(Jobs, "_run", run_here)
    app.selectbox(key=f"upload_holds_{upload.upload_id}").select("logits").run()
    assert "**90 positions x 32 tokens**" in said(app)
    app.button(key=f"save_{upload.upload_id}").click().run()
    saved(app)
    assert len(runs(store)) == 1


def test_a_torch_file_with_a_padded_vocabulary_is_saved_once_the_user_says_that_it_is_padded(
    monkeypatch, store, tmp_path
):
    sides = [torch.randn((6, vocab), generator=torch.Generator().manual_seed(vocab)) for vocab in (32, 40)]
    torch.save({"hf": sides[0], "engine": sides[1]}, tmp_path / "padded.pt")
    upload = put(store, tmp_path / "padded.pt")
    app = page(monkeypatch, upload)
    assert "padded by 8 tokens" in app.error[0].value
    monkeypatch.setattr(Jobs, "_run", run_here)
    app.selectbox(key=f"upload_holds_{upload.upload_id}").select("padded").run()
    assert "**6 positions x 32 tokens**" in said(app)
    app.button(key=f"save_{upload.upload_id}").click().run()
    saved(app)
    (path,) = runs(store)
    with RunReader(path) as run:
        assert [side.name for side in run.header.sides] == ["hf", "engine"]
        assert run.header.vocab == 32
        assert "8 of padding" in run.header.provenance.note


def test_sides_of_different_dtypes_are_told_with_what_follows_for_ulps(monkeypatch, store, tmp_path):
    fine = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    np.savez(tmp_path / "mixed.npz", reference=fine, variant=(fine.view(np.uint32) & 0xFFFF0000).view(np.float32))
    app = page(monkeypatch, put(store, tmp_path / "mixed.npz"))
    assert "sides are of different dtypes" in app.warning[0].value
    assert "65,536" in app.warning[0].value


def test_files_of_one_array_make_a_pair_one_alone_waits_and_of_three_two_are_chosen(monkeypatch, store, tmp_path):
    logits = np.random.default_rng(0).standard_normal((4, 16), dtype=np.float32)
    uploads = []
    for name in ("before", "after", "later"):
        np.save(tmp_path / f"{name}.npy", logits)
        uploads.append(put(store, tmp_path / f"{name}.npy"))
    alone = page(monkeypatch, uploads[0])
    assert "add the file" in alone.error[0].value
    pair = page(monkeypatch, *uploads[:2])
    assert "**4 positions x 16 tokens**" in said(pair)
    assert pair.dataframe[0].value["side"].tolist() == ["before", "after"]
    three = page(monkeypatch, *uploads)
    three.multiselect(key="upload_pair").set_value([uploads[2].upload_id, uploads[1].upload_id]).run()
    assert three.dataframe[0].value["side"].tolist() == ["later", "after"]


def test_several_files_are_several_runs_and_a_bad_one_hinders_none(monkeypatch, store, tmp_path):
    monkeypatch.setattr(Jobs, "_run", run_here)
    (tmp_path / "odd.npz").write_bytes(b"no dump at all")
    uploads = [
        put(store, DUMPS / "six_calls.npz"),
        put(store, tmp_path / "odd.npz"),
        put(store, ROOT / "tests" / "cases" / "bf16_upcast_to_fp32.npz"),
    ]
    app = page(monkeypatch, *uploads)
    assert len(app.error) == 1
    assert "odd\\.npz" in app.error[0].value
    for upload in (uploads[0], uploads[2]):
        app.button(key=f"save_{upload.upload_id}").click().run()
    saved(app, jobs=2)
    assert len(runs(store)) == 2


def test_what_is_not_ones_own_or_not_complete_is_not_shown_whatever_the_browser_says(monkeypatch, store):
    uploads = [put(store, DUMPS / "six_calls.npz", owner="token:eve"), put(store, DUMPS / "six_calls.npz", part=0.5)]
    app = page(monkeypatch, *uploads, dataclasses.replace(uploads[0], upload_id="../../x"))
    assert "Keys are side names" in said(app)
    assert not app.error


def test_a_senders_names_are_rendered_inert(monkeypatch, store, tmp_path):
    evil = "[x](http:e) <b>*s*.npz"
    np.savez(tmp_path / "d.npz", **{"[y](http://e)": np.ones((1, 2), np.float32), "<i>": np.ones((1, 2), np.float32)})
    app = page(monkeypatch, put(store, tmp_path / "d.npz", name=evil))
    raw = "\n".join(str(each.value) for each in app.markdown)
    assert "[x](" not in raw
    assert "<b>" not in raw.replace("\\<b", "")


def test_a_save_that_fails_leaves_the_upload_to_be_saved_again(monkeypatch, store):
    upload = put(store, DUMPS / "six_calls.npz")
    jobs, spool = store_changes.jobs(), Spool(store)
    save(
        jobs,
        spool,
        [upload],
        title="x",
        options={"name": "x", "compute_dtype": "", "reference": "no such side"},
        who="local",
    )
    until(lambda: jobs.ingests()[0].is_over)
    assert jobs.ingests()[0].state == "failed"
    assert spool.finished(upload.upload_id, ME).read_bytes() == (DUMPS / "six_calls.npz").read_bytes()
    until(lambda: not spool.is_held(upload))
    assert "Understood as" in [each.value for each in page(monkeypatch, upload).subheader]
    assert runs(store) == []


def test_an_upload_is_saved_once_at_a_time_and_not_removed_meanwhile(store):
    upload = put(store, DUMPS / "six_calls.npz")
    with held(upload.directory):
        with pytest.raises(UploadError, match="try again"):
            save(store_changes.jobs(), Spool(store), [upload], title="x", options={}, who="local")
        with pytest.raises(UploadError, match="being saved"):
            Spool(store).remove(upload)
    assert store_changes.jobs().ingests() == []
    Spool(store).remove(upload)


def test_a_run_file_says_what_it_is_is_checked_and_becomes_a_run(monkeypatch, store, tmp_path):
    monkeypatch.setattr(Jobs, "_run", run_here)
    upload = put(store, shutil.copy(ROOT / "tests" / "runs" / "injected-bug.duckdb", tmp_path / "theirs.duckdb"))
    app = page(monkeypatch, upload)
    until(lambda: "Understood as a run file" in [each.value for each in app.run().subheader])
    assert "sides `prefill`, `another_requests_block`" in said(app)
    assert "table by table" in said(app)
    app.button(key=f"save_{upload.upload_id}").click().run()
    saved(app)
    (path,) = runs(store)
    with RunReader(path) as run, RunReader(ROOT / "tests" / "runs" / "injected-bug.duckdb") as original:
        assert run.header.name == original.header.name
        assert [run.at(side, 0, 7).tobytes() for side in (0, 1)] == [
            original.at(side, 0, 7).tobytes() for side in (0, 1)
        ]


@pytest.mark.spread(1)
@pytest.mark.parametrize("is_large", [False, True])
def test_a_look_says_the_same_in_this_process_and_in_one_of_its_own(monkeypatch, is_large):
    monkeypatch.setattr(looking, "AT_ONCE_BYTES", 0 if is_large else 1 << 30)
    looks = Looks()
    path = DUMPS / "fresh_and_cached_upcast.npz"
    look = looks.look([path])
    assert look.is_over is not is_large
    until(lambda: look.is_over)
    assert look.understood is not None
    assert look.understood["compute_dtype"] == "bfloat16"
    assert [side["name"] for side in look.understood["sides"]] == ["fresh", "cached"]
    assert looks.look([path]) is look  # looked at once
    assert not is_large or look.total == path_bytes(path)
    looks.stop()


def test_a_small_file_that_unpacks_to_much_is_looked_at_by_a_process_of_its_own(tmp_path):
    zeros = np.zeros((64, 1 << 17), np.float32)
    np.savez_compressed(tmp_path / "small.npz", reference=zeros, variant=zeros)
    assert (tmp_path / "small.npz").stat().st_size < 1 << 20 < looking.AT_ONCE_BYTES < 2 * zeros.nbytes
    looks = Looks()
    assert not looks.look([tmp_path / "small.npz"]).is_over
    looks.stop()


def path_bytes(path: Path) -> int:
    """Bytes of the logits of both sides."""
    with np.load(path) as arrays:
        return sum(arrays[name].nbytes for name in ("fresh", "cached"))


def test_a_file_that_changed_is_looked_at_again(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, reference=np.ones((1, 2), np.float32), variant=np.ones((1, 2), np.float32))
    looks = Looks()
    assert looks.look([path]).understood["positions"] == 1
    np.savez(path, reference=np.ones((3, 2), np.float32), variant=np.ones((3, 2), np.float32))
    assert looks.look([path]).understood["positions"] == 3


def test_responses_of_two_servers_are_one_run(monkeypatch, store):
    uploads = [put(store, PAYLOADS / "llamacpp_completion.json", name=f"{name}.json") for name in ("old", "new")]
    app = page(monkeypatch, *uploads)
    key = "_".join(upload.upload_id for upload in uploads)
    assert "Understood as responses of an engine" in [each.value for each in app.subheader]
    assert app.dataframe[0].value["side"].tolist() == ["old", "new"]
    assert "**1 prompt**, **3 positions**" in said(app)
    app.text_input(key=f"upload_name_{key}").set_value("before and after").run()
    app.button(key=f"save_{key}").click().run()
    app = saved(app)
    (path,) = runs(store)
    run = sparse_of(path)
    assert (run.header.name, run.header.model) == ("before and after", "SmolLM2-135M-Instruct")
    app.button(key="open_1").click().run()
    assert app.title[0].value == "Overview"
    assert "both sides sent are equal" in said(app)


def test_a_stream_and_the_whole_answer_are_one_run(monkeypatch, store):
    stream, whole = PAYLOADS / "vllm_stream.txt", PAYLOADS / "vllm_token_ids.json"
    app = page(monkeypatch, put(store, whole, name="whole.json"), put(store, stream, name="stream.txt"))
    assert "Understood as responses of an engine" in [each.value for each in app.subheader]
    assert "**1 prompt**" in said(app)


def test_json_that_is_no_response_is_a_sentence_and_no_save(monkeypatch, store, tmp_path):
    (tmp_path / "list.json").write_text('[{"hello": 1}]')
    app = page(monkeypatch, put(store, tmp_path / "list.json"))
    assert "no response that is known" in app.error[0].value.replace("\\", "")
    assert not [button for button in app.button if str(button.key).startswith("save_")]
