"""A store on a real S3 server: whole runs or none, the same for every machine, and what a server
can do wrong.
"""

import gzip
import sys
import threading

import boto3
import pytest

from core.errors import ExtraError, StoreError, UsageError
from core.runs.importing import import_run
from core.runs.store import labels, objects
from core.runs.store.cards import list_runs
from core.runs.store.labels import Labels
from core.runs.store.objects import INDEX
from core.runs.store.store import Store, open_store
from tests.core.runs.made_runs import make_run
from tests.core.runs.store import s3_server
from tests.core.runs.store.machines import ids, machines_of, place_run
from tests.places import RUNS


@pytest.fixture
def faults(server):
    """Faults of a server that has none yet."""
    _, planted = server
    planted.seen.clear()
    planted.released.clear()
    yield planted
    planted.plan = lambda method, path, query: None
    planted.released.set()


@pytest.fixture
def machine(faults, request, tmp_path, monkeypatch):
    return machines_of(request, tmp_path, monkeypatch)


def first(count, method, part, fault):
    """Plan: the first so many requests of a method with `part` in their address get the fault."""
    left = [count]

    def plan(asked, path, query):
        if asked != method or part not in f"{path}?{query}" or not left[0]:
            return None
        left[0] -= 1
        return fault

    return plan


def key(store, name):
    """Where an object of a store lies, as boto3 takes it."""
    bucket, _, prefix = store.address.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": f"{prefix}/{name}"}


def get(store, name):
    return boto3.client("s3").get_object(**key(store, name))["Body"].read()


def put(store, name, body):
    boto3.client("s3").put_object(**key(store, name), Body=body)


def test_a_run_written_on_one_machine_is_read_bit_for_bit_on_another(machine):
    path = make_run(machine("a"))
    there = machine("b")
    # each machine has a cache of its own, or the second one would read the first one's file
    assert there.directory != path.parent
    assert ids(there) == [path.stem]
    assert there.path_of(path.stem).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("is_large", [False, True])
def test_no_run_is_put_over_another(machine, is_large, monkeypatch):
    if is_large:
        monkeypatch.setattr(objects, "SINGLE_BYTES", 1000)
        # S3 refuses parts of less than 5 MiB, the last one aside
        monkeypatch.setattr(objects, "PIECE_BYTES", 5 << 20)
    body = place_run(machine("a"), "same")
    with pytest.raises(StoreError, match="run 'same' exists already"):
        place_run(machine("b"), "same", "where-it-starts")
    assert get(machine("c"), "same.duckdb") == body
    with pytest.raises(StoreError, match="exists already or is being"):
        make_run(machine("b"), run_id="same")


def test_a_second_listing_reads_the_index_and_no_run(machine, faults):
    place_run(machine("a"), "one")
    cards = list_runs(machine("a"))
    faults.seen.clear()
    assert list_runs(machine("b")) == cards
    assert faults.count("GET", "one.duckdb") == 0
    for damage in (b"", b"no index", gzip.compress(b"[]"), gzip.compress(b'{"one": {"tag": 1}}')):
        put(machine("a"), INDEX, damage)
        # on a machine that has read no index yet
        assert list_runs(machine(f"new {len(damage)}")) == cards
    boto3.client("s3").delete_object(**key(machine("a"), INDEX))
    assert list_runs(machine("new")) == cards
    assert list_runs(machine("newer")) == cards


def test_a_run_that_is_gone_or_replaced_is_shown_by_no_index(machine):
    for run_id in ("gone", "one"):
        place_run(machine("a"), run_id)
    assert ids(machine("b")) == ["gone", "one"]
    boto3.client("s3").delete_object(**key(machine("a"), "gone.duckdb"))
    other = (RUNS / "where-it-starts.duckdb").read_bytes()
    put(machine("a"), "one.duckdb", other)
    (card,) = list_runs(machine("b"))[0]
    assert card.bytes == len(other)
    assert machine("b").path_of("one").read_bytes() == other
    with pytest.raises(StoreError, match="no run 'gone' in"):
        machine("b").path_of("gone")


def test_a_file_is_fetched_once_in_pieces(machine, faults, monkeypatch):
    monkeypatch.setattr(objects, "PIECE_BYTES", 1 << 20)
    body = place_run(machine("a"), "one", "injected-bug")
    for _ in range(2):
        assert machine("b").path_of("on").read_bytes() == body
    assert faults.count("GET", "one.duckdb") == -(-len(body) // (1 << 20))


def test_a_run_that_changes_while_it_is_fetched_gets_no_name(machine, faults, monkeypatch):
    monkeypatch.setattr(objects, "PIECE_BYTES", 1 << 20)
    place_run(machine("a"), "one", "injected-bug")
    there = machine("b")
    other = (RUNS / "where-it-starts.duckdb").read_bytes()

    def plan(method, path, query):
        is_piece = method == "GET" and path.endswith("one.duckdb")
        if is_piece and faults.count("GET", "one.duckdb") == 2:
            put(there, "one.duckdb", other)

    faults.plan = plan
    with pytest.raises(StoreError):
        there.path_of("one")
    assert list(there.directory.glob("*.duckdb")) == []


def test_the_files_used_longest_ago_make_room(machine, monkeypatch):
    size = len(place_run(machine("a"), "one"))
    for run_id in ("two", "three"):
        place_run(machine("a"), run_id)
    # or all three would be spared as just used
    monkeypatch.setattr(objects, "USED_SECONDS", 0.0)
    monkeypatch.setenv("ULPSCOPE_LIMITS_CACHE_BYTES", str(2 * size))
    there = machine("b")
    for run_id in ("one", "two", "one", "three"):
        there.path_of(run_id)
    assert sorted(path.stem for path in there.directory.glob("*.duckdb")) == ["one", "three"]
    assert ids(there) == ["one", "three", "two"]


def test_two_machines_that_tag_one_run_at_once_lose_no_tag(machine, faults):
    stores = {name: machine(name) for name in "ab"}

    def tag(name):
        for number in range(5):
            stores[name].label("one", Labels((f"{name}{number}",)), Labels())

    threads = [threading.Thread(target=tag, args=[name]) for name in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(machine("c").labels("one").tags) == sorted(
        f"{name}{number}" for name in "ab" for number in range(5)
    )
    # so the server refused some, which were tried again
    assert faults.count("PUT", labels.FILE) > 10


def test_a_deleted_run_is_gone_on_every_machine_and_can_be_restored(machine):
    body = place_run(machine("a"), "one")
    machine("a").label("one", Labels(("a tag",)))
    machine("b").path_of("one")
    assert machine("a").delete("on") == "one"
    assert ids(machine("b")) == []
    with pytest.raises(StoreError, match="no run 'one'"):
        machine("b").path_of("one")
    assert [run.bytes for run in machine("b").deleted()] == [len(body)]
    assert machine("b").restore("one") == "one"
    assert machine("a").path_of("one").read_bytes() == body
    assert machine("a").labels("one") == Labels(("a tag",))
    machine("a").delete("one")
    machine("b").purge("one")
    assert machine("c").all_labels() == ({}, [])
    other = place_run(machine("c"), "one", "where-it-starts")
    assert machine("a").path_of("one").read_bytes() == other


@pytest.mark.parametrize(
    ("method", "part"),
    [("GET", "list-type"), ("PUT", "one.duckdb"), ("GET", "one.duckdb")],
)
def test_two_503s_are_borne_and_a_third_is_one_sentence(machine, faults, method, part):
    faults.plan = first(objects.RETRIES, method, part, "503")
    body = place_run(machine("a"), "one")
    assert machine("b").path_of("one").read_bytes() == body
    faults.plan = first(1000, method, part, "503")
    with pytest.raises(StoreError, match="objects there") as refused:
        # a fault of PUT lets the read pass, and stops what follows
        (machine("c").path_of("one"), place_run(machine("c"), "one"))
    assert s3_server.SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_half_of_an_answer_is_asked_for_again(machine, faults):
    body = place_run(machine("a"), "one")
    faults.plan = first(2, "GET", "one.duckdb", "half")
    assert machine("b").path_of("one").read_bytes() == body


def test_silence_is_one_sentence_after_a_bounded_time(machine, faults, monkeypatch):
    monkeypatch.setattr(objects, "SHORT_SECONDS", 1)
    monkeypatch.setattr(objects, "RETRIES", 0)
    faults.plan = first(1000, "GET", "list-type", "silence")
    with pytest.raises(StoreError, match="cannot list objects there"):
        list_runs(machine("a"))


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_put_whose_answer_got_lost_has_happened(machine, faults, monkeypatch, is_ours):
    """The second attempt finds the name taken: by the same bytes, or by another's."""
    monkeypatch.setattr(objects, "LONG_SECONDS", 1)
    store = machine("a")
    if not is_ours:
        put(store, "one.duckdb", b"another's")
    faults.plan = first(1, "PUT", "one.duckdb", "done, then silence")
    if is_ours:
        body = place_run(store, "one")
        assert faults.count("PUT", "one.duckdb") == 2
        assert machine("b").path_of("one").read_bytes() == body
    else:
        with pytest.raises(StoreError, match="run 'one' exists already"):
            place_run(store, "one")
        assert get(store, "one.duckdb") == b"another's"


def test_while_nothing_answers_every_request_is_refused_and_a_finished_run_is_not_lost(
    machine,
    faults,
):
    place_run(machine("a"), "fetched")
    store = machine("b")
    assert ids(store) == ["fetched"]
    faults.plan = lambda method, path, query: "503"
    for _ in range(2):
        for refused in (
            lambda: list_runs(store),
            lambda: store.path_of("fetched"),
            lambda: store.delete("fetched"),
            lambda: make_run(store),
        ):
            with pytest.raises(StoreError, match="cannot list objects there"):
                refused()
        asked, faults.seen[:] = list(faults.seen), []
    assert asked == []  # a dead endpoint is not asked at every page
    with pytest.raises(StoreError, match=r"is not stored: .* ingest .*one\.duckdb"):
        place_run(store, "one")
    (waiting,) = store.directory.glob("unsent/*")
    faults.plan = lambda method, path, query: None
    there = machine("c")
    assert ids(there) == ["fetched"]
    import_run(there, waiting, run_id="one")
    assert ids(there) == ["fetched", "one"]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://key:secret@bucket/runs", "credentials belong in the environment"),
        ("s3://bucket/runs?X-Amz-Signature=secret", "credentials belong in the environment"),
        ("nothing://x/runs", "expected s3://"),
        ("file:///tmp/runs", "expected s3://"),
        ("s3://", "expected s3://"),
    ],
)
def test_a_url_that_names_no_store_is_a_sentence_without_its_secret(url, sentence):
    with pytest.raises(UsageError, match=sentence) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_bucket_that_is_not_there_and_missing_credentials_are_sentences(machine, monkeypatch):
    machine("a")
    with pytest.raises(StoreError, match="no such bucket"):
        list_runs(open_store("s3://nowhere/runs"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    # without keys the client asks the metadata service of a cloud; nothing listens on port 9
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="no credentials for it"):
        list_runs(machine("without"))


def test_whoever_opens_the_folder_of_a_store_has_the_store(machine):
    """As a job of the dashboard does."""
    place_run(machine("a"), "one")
    folder = machine("b").directory
    assert ids(Store(folder)) == ["one"]
    assert Store(folder).address == machine("b").address


def test_without_the_extra_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path))
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ExtraError, match="needs obstore"):
        open_store("s3://bucket/without-the-extra")
