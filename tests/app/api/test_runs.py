"""Runs over HTTP: the figures of the command line, the filters of the gallery, the manners of a
server of files.
"""

import json

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.testclient import TestClient

from app.api import runs
from app.routes import ROUTES
from core.__main__ import app
from core.document.page import html_file
from core.judging.stored import explain_pair
from core.runs.dumps.export import export_npz
from core.runs.reader import RunReader
from core.runs.store import labels
from core.runs.store.store import Store
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import calm_sides, copied, header_of, write_run

NO_LABELS = {"tags": [], "note": "", "pinned": False, "judged_as": "", "name": ""}


@pytest.fixture
def three(store):
    """Ids of three runs, the newest last."""
    names = {"first": "bfloat16", "second": "float32", "third, golden": "bfloat16"}
    for number, (name, dtype) in enumerate(names.items()):
        header = header_of(dtype, name=name)
        write_run(Store(store), header, calm_sides(header, number), f"run-{number}")
    Store(store).label("run-2", labels.Labels(("golden", "a,b"), "kept", True))
    return ["run-0", "run-1", "run-2"]


def ids(client, query=""):
    answer = client.get(f"/api/runs?{query}")
    assert answer.status_code == 200, answer.text
    return [run["run_id"] for run in answer.json()["runs"]]


def test_the_list_filters_as_the_gallery_does(client, three):
    assert sorted(ids(client)) == three
    assert ids(client, "search=second") == ["run-1"]
    assert sorted(ids(client, "search=bfloat16")) == ["run-0", "run-2"]
    assert ids(client, "tag=golden&tag=a,b") == ["run-2"]
    assert ids(client, "limit=1&offset=1") == ids(client)[1:2]
    assert client.get("/api/runs?limit=1").json()["total"] == 3
    labelled = {"tags": ["golden", "a,b"], "note": "kept", "pinned": True}
    (run,) = client.get("/api/runs?search=kept").json()["runs"]
    assert run["labels"] == NO_LABELS | labelled


@pytest.mark.parametrize(
    "query",
    [
        "dtype=float32",
        "sort=name",
        "limit=all",
        "limit=5000",
        "sarch=x",
        "verdict=fine",
        "search=" + "x" * 200,
    ],
)
def test_a_filter_that_means_nothing_is_a_sentence(query, client):
    answer = client.get(f"/api/runs?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(".")


def test_one_run_is_what_the_command_line_prints(client, three, store, capsys):
    told = client.get("/api/runs/run-1?positions=1").json()
    capsys.readouterr()
    words = ["show", "run-1", "--json", "--positions", "--store", str(store)]
    app(words, standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)
    extra = {
        "labels": NO_LABELS,
        "url": "http://testserver/overview?run=run-1",
    }
    assert told == {**printed, **extra}
    assert len(told["by_position"]) == 8


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/runs/none", 404),
        ("GET", "/api/runs/none/file", 404),
        ("GET", "/files/none.npz", 404),
        ("GET", "/api/runs/run-0?positions=2", 400),
        ("POST", "/api/runs", 405),
        ("PATCH", "/api/runs/run-0", 405),
        ("GET", "/api/run", 404),
        ("GET", "/api/runs/run-0/npy", 404),
        ("GET", "/files/run-0.zip", 404),
    ],
)
def test_what_is_not_there_or_not_meant_is_a_status(
    method,
    path,
    status,
    client,
    three,
):
    answer = client.request(method, path)
    assert answer.status_code == status, answer.text
    assert status == 405 or set(answer.json()) == {"error"}


def test_the_file_comes_in_ranges_and_only_if_it_has_changed(client, three, store):
    body = (store / "run-0.duckdb").read_bytes()
    whole = client.get("/api/runs/run-0/file")
    assert whole.content == body
    assert whole.headers["content-type"] == "application/octet-stream"
    etag = whole.headers["etag"]
    part = client.get("/api/runs/run-0/file", headers={"Range": "bytes=100-199", "If-Range": etag})
    assert part.status_code == 206
    assert part.content == body[100:200]
    beyond = client.get("/api/runs/run-0/file", headers={"Range": f"bytes={len(body)}-"})
    assert beyond.status_code == 416
    changed = {"Range": "bytes=0-9", "If-Range": '"other"'}
    assert client.get("/api/runs/run-0/file", headers=changed).status_code == 200
    assert client.head("/api/runs/run-0/file").headers["content-length"] == str(len(body))
    assert client.get("/files/run-0.duckdb").content == body


def test_the_html_file_is_a_download(client, three, store):
    answer = client.get("/files/run-0.html")
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''run-0.html"
    with RunReader(store / "run-0.duckdb") as run:
        assert answer.text == html_file(run, explain_pair)


def test_an_npz_is_the_same_bytes_whenever_it_is_written_so_that_a_range_fits(
    client,
    three,
    store,
    tmp_path,
    monkeypatch,
):
    first = client.get("/api/runs/run-1/npz")
    kept = list((store / ".npz").iterdir())
    assert len(kept) == 1
    kept[0].unlink()
    # zipfile dates its members by it
    monkeypatch.setattr("time.localtime", lambda *_: (2031, 1, 1, 0, 0, 0, 0, 1, 0))
    rest = client.get(
        "/api/runs/run-1/npz",
        headers={"Range": "bytes=1000-", "If-Range": first.headers["etag"]},
    )
    assert rest.status_code == 206
    assert rest.content == first.content[1000:]
    with RunReader(store / "run-1.duckdb") as run:
        export_npz(run, tmp_path / "own.npz")
    assert (tmp_path / "own.npz").read_bytes() == first.content


def test_kept_npz_files_stay_within_bounds(client, three, store, monkeypatch):
    for run_id in three:
        assert client.get(f"/api/runs/{run_id}/npz").status_code == 200
    assert len(list((store / ".npz").iterdir())) == 3
    monkeypatch.setattr(runs, "MOST_BYTES", 1)
    copied(store / "run-3.duckdb")
    assert client.get("/api/runs/run-3/npz").status_code == 200
    (kept,) = (store / ".npz").iterdir()
    assert kept.name.startswith("run-3-")
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "999000000000000")
    assert client.get("/api/runs/run-0/npz").status_code == 507


def test_a_download_is_not_compressed_on_the_way_by_what_stands_in_front(store, three):
    """As Streamlit's server does it: a range of a compressed whole would be of other bytes."""
    packed = Starlette(routes=ROUTES, middleware=[Middleware(GZipMiddleware, minimum_size=10)])
    with TestClient(packed) as client:
        assert client.get("/api/runs").headers["content-encoding"] == "gzip"
        for kind in ("file", "npz"):
            answer = client.get(f"/api/runs/run-0/{kind}", headers={"Accept-Encoding": "gzip"})
            assert int(answer.headers["content-length"]) == len(answer.content)
            assert answer.headers.get("content-encoding", "identity") == "identity"


def test_a_damaged_run_is_a_sentence_and_harms_no_list(client, three, store):
    damaged(
        store / "run-0.duckdb",
        "UPDATE pair SET neq_share = 'nan'::DOUBLE, noise_ratio = 'inf'::DOUBLE",
    )
    damaged(store / "run-1.duckdb", "DROP TABLE position")
    # a name that is no UTF-8, as the file system holds it
    (store / "x\udcff.duckdb").write_bytes(b"none")
    assert client.get("/api/runs/run-0").json()["verdicts"][0]["noise_ratio"] is None
    answer = client.get("/api/runs/run-1")
    assert (answer.status_code, list(answer.json())) == (409, ["error"]), answer.text
    listed = client.get("/api/runs").json()
    assert [run["max_neq_share"] for run in listed["runs"] if run["run_id"] == "run-0"] == [None]
    assert listed["total"] == 3
    assert len(listed["broken"]) == 1
