"""A run of lists keeps what was sent, bit for bit, in the tables of every run."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from core.errors import DumpError, StoreError, UsageError
from core.responses.alignment import align
from core.responses.records import ResponseSide
from core.runs.importing import import_run
from core.runs.reader import RunReader
from core.runs.reports.run_json import run_json
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from tests.core.responses.made_sides import compare, engine_side, response, side, store_run
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import opened


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A stored run, made once for the tests that read it or damage a copy."""
    store = Store(tmp_path_factory.mktemp("made"))
    return store.path_of(store_run(store, "top 20", *sides()))


def told(sides):
    """Everything of the sides but the texts, arrays as lists: a run has one text for a token."""
    answers = []
    for each in sides:
        for one in each.responses:
            # NaN stands for a value that was not sent, and is unequal to itself
            rows = {name: np.nan_to_num(values).tolist() for name, values in vars(one.rows).items()}
            about = {
                **vars(one),
                "texts": None,
                "settings": dict(one.settings),
            }
            answers.append(about | {"rows": rows})
    return answers


def sides():
    odd = response(
        [-1, 7, 8],
        {
            0: {7: -0.1234567, 1: -3.0000000000000004},
            1: {8: -0.25, 1: -7.5},
        },
        prompt=1,
        start_known=False,
        texts={7: "ß", 8: "\x00"},
        top_logprobs=2,
        cached=3,
        settings={"draft_n_accepted": "0"},
        warnings=("a note.",),
    )
    first = engine_side("A", 1, 20)
    second = engine_side("B", 2, 20)
    return ResponseSide("A", (*first.responses, odd)), ResponseSide("B", (*second.responses, odd))


def test_what_was_sent_comes_back_exactly(made):
    written = sides()
    with RunReader(made) as run:
        assert told(run.responses()) == told(written) == told(align(written))
        assert run.responses()[0].responses[1].texts == {7: "ß", 8: "\x00"}
        pair = compare(*written)
        columns = (
            pair.prompts,
            pair.positions,
            pair.figures.max_abs,
            pair.figures.is_flip,
        )
        names = ("prompt", "position", "max_abs", "is_flip")
        stored = [tuple(row[name] for name in names) for row in run.records(0)]
        assert stored == list(zip(*(column.tolist() for column in columns), strict=True))
        summary = run.pairs[0].summary
        assert summary.finite == pair.common_values
        assert summary.neq == pair.differing
        assert summary.max_ulps is None
        assert summary.near_ties is None
        assert summary.mean_kl is None
        assert run.header.k == 20
        assert run.header.holds == "logprob"
        assert run.header.keep == "figures"
        (top,) = run.top_tokens([0], 0, 3)
        assert top["rank"].tolist() == list(range(1, 21))


def test_sides_that_sent_the_same_form_a_class(store):
    one, other = sides()
    with opened(store, store_run(store, "three", one, other, replace(one, name="C"))) as run:
        assert run.classes == [["A", "C"], ["B"]]


def test_its_card_tells_what_differs_and_nothing_more(made):
    ((card,), broken) = list_runs(Store(made.parent))
    assert not broken
    assert card.kind == "upload"
    assert card.sides == ("A", "B")
    assert card.pairs == 1
    assert card.prompts == 2
    assert card.compute_dtype == "bfloat16"
    assert 0 < card.max_neq_share < 1
    assert card.pair_verdicts == ("undecided",)
    assert card.bit_identical_pairs == 0
    assert card.max_ulps is None


def test_sides_that_cannot_be_compared_leave_nothing(store):
    one = side(
        "A",
        response([5, 6], {0: {6: -0.5, 1: -1.0}}),
    )
    other = side(
        "B",
        response([7, 6], {0: {6: -0.5, 1: -1.0}}),
    )
    with pytest.raises(DumpError, match="no position"):
        store_run(store, "x", one, other)
    with pytest.raises(UsageError, match="called 'A'"):
        store_run(store, "x", one, one)
    assert list_runs(store) == ([], [])


def test_it_goes_from_store_to_store(made, store):
    with opened(store, import_run(store, made)) as run:
        assert told(run.responses()) == told(sides())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE top_token SET token_id = -3 WHERE rowid = 0",
        "UPDATE top_token SET position = 9999 WHERE rowid = 0",
        "UPDATE top_token SET logit = 'NaN' WHERE rowid = 0",
        "UPDATE side_position SET best = 400 WHERE rowid = 0",
        "UPDATE side_position SET position = 1 WHERE rowid = 0",
        "UPDATE side SET holds = 'entropy'",
        "DELETE FROM side WHERE side = 0",
        "UPDATE response SET settings = '[' ",
        "UPDATE response SET tokens = '[1]' ",
        "DROP TABLE response",
    ],
)
def test_a_damaged_file_is_refused_in_a_sentence(made, store, tmp_path, damage):
    path = tmp_path / "damaged.duckdb"
    shutil.copyfile(made, path)
    damaged(path, damage)
    with pytest.raises(StoreError, match=path.stem), RunReader(path) as run:
        run.responses()
    with pytest.raises(StoreError):
        import_run(store, path)


def test_its_json_is_that_of_every_run(made):
    with RunReader(made) as run:
        found = run_json(run, with_positions=True)
    assert found["summary"]["flips"] == len(found["flips"])
    assert found["positions"] == len(found["by_position"])
    assert found["by_position"][0]["kl"] is None
    assert found["sides"][0]["k"] == 20
