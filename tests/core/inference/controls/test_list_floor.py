"""The floor of lists: two ways of a model are within it, a fault and another model are not; a bug
is never claimed.
"""

import numpy as np
import pytest
import torch

from benchmarks.verdicts.variations import in_two_halves
from core.checks.list_floor import LIST_FLOOR, ListFloorFigures
from core.inference.controls.list_floor import rescore
from core.judging.explain.rescoring import floor_evidence
from core.judging.explain.rows import rows_of_lists
from core.judging.lists import judge_with_floor
from core.responses.pairing import compare_sides
from core.responses.records import ResponseSide
from core.verdict import Verdict
from tests.core.inference.sameness import logits_of, on_cpu
from tests.core.responses.made_sides import response, run_of, store_run
from tests.places import MODEL

pytestmark = pytest.mark.model
TEXT = (
    "class Queue:\n    def put(self, item):\n        self.items.append(item)\n\n    def"
    " get(self):\n        return self"
)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def loaded(request):
    return on_cpu(MODEL, request.param)


def rows_of(loaded, engine):
    ids = tuple(loaded.tokenizer(TEXT)["input_ids"])
    return torch.log_softmax(logits_of(engine, loaded, ids).float(), -1)


def side(loaded, name, rows, *, has_ids=True):
    tokens = loaded.tokenizer(TEXT)["input_ids"] if has_ids else [-1] * (len(rows) + 1)
    sent = {}
    for position, row in enumerate(rows):
        best = row.topk(20)
        values = best.values.double().tolist()
        sent[position] = dict(zip(best.indices.tolist(), values, strict=True))
    return ResponseSide(name, (response(tokens, sent),))


def judged(loaded, *sides):
    earlier = Verdict("undecided", "It differs.", ())
    pair = compare_sides(*sides)
    rows = rows_of_lists(pair, *sides, most=len(pair.positions))
    scores = rescore(loaded, [sides[0].responses[0].tokens], rows, print)
    return judge_with_floor(earlier, pair, sides, floor_evidence(scores))


def figures_of(verdict):
    figures = next(row.figures for row in verdict.evidence if row.check is LIST_FLOOR)
    assert isinstance(figures, ListFloorFigures)
    return figures


def test_two_ways_of_one_model_are_rounding(loaded):
    rows = {"prefill": rows_of(loaded, "prefill"), "halves": rows_of(loaded, in_two_halves)}
    found = judged(loaded, *(side(loaded, *each) for each in rows.items()))
    assert found.name == "rounding"
    assert found.noise_ratio <= 4


def test_a_fault_of_the_size_of_the_first_digit_is_not(loaded):
    rows = rows_of(loaded, "decode").clone()
    # one position of another request
    rows[11] = rows[11].roll(1)
    sound = side(loaded, "prefill", rows_of(loaded, "prefill"))
    found = judged(loaded, sound, side(loaded, "faulty", rows))
    # by their KL alone
    assert found.name == "bug suspected"
    assert found.noise_ratio > 4
    assert figures_of(found).worst_position_ratio > 10


def test_another_model_gives_no_verdict(loaded):
    rows = rows_of(loaded, "prefill")
    drawn = np.random.default_rng(1).normal(0, 1, rows.shape)
    noise = torch.from_numpy(drawn).float()
    # the two differ by what two ways of this model do
    shift = rows_of(loaded, in_two_halves) - rows
    other = torch.log_softmax(rows + noise, -1)
    again = torch.log_softmax(rows + noise + shift, -1)
    found = judged(loaded, side(loaded, "one", other), side(loaded, "two", again))
    assert found.name == "undecided"
    assert "noise floors away" in found.because
    figures = figures_of(found)
    assert min(figures.reference_noise_ratio, figures.variant_noise_ratio) > 10


@pytest.fixture(scope="module")
def wide():
    return on_cpu(MODEL)


@pytest.mark.parametrize("command", ["verdict", "explain"])
def test_tokens_that_are_not_known_cannot_be_read(command, wide, cli, store):
    made = [side(wide, path, rows_of(wide, path), has_ids=False) for path in ("prefill", "decode")]
    run_id = store_run(store, "made", *made)
    refusal = cli(command, run_id, "--model", MODEL).refusal
    assert "has no token_ids, so no model can run" in refusal


def test_the_command_stores_the_run_judged(wide, cli, store):
    made = [side(wide, path, rows_of(wide, path)) for path in ("prefill", "decode")]
    run_id = store_run(store, "ways", *made)
    cli("verdict", run_id, "--model", MODEL, "--json").succeeded()
    (new,) = (path for path in store.directory.glob("*.duckdb") if path.stem != run_id)
    judged_run = run_of(new)
    assert [found.name for found in judged_run.verdicts] == ["rounding"]
    assert judged_run.header.name == "ways, judged"
    assert len(judged_run.pairs) == 1
    assert "dumps of complete logits" in cli("verdict", run_id, "--floor", "x.npz").refusal


def test_explain_says_which_side_is_not_the_models(wide, cli, store):
    own = rows_of(wide, "prefill")
    drawn = np.random.default_rng(1).normal(0, 0.3, own.shape)
    other = torch.log_softmax(own + torch.from_numpy(drawn).float(), -1)
    rows = {
        "ours": own,
        "theirs": other,
        "cached": rows_of(wide, "decode"),
    }
    run_id = store_run(store, "made", *(side(wide, *each) for each in rows.items()))
    done = cli("explain", run_id, "--model", MODEL, "--json").succeeded()
    theirs, cached = done.json["pairs"]
    assert [cause["name"] for cause in theirs["causes"]] == ["other weights"]
    parameters = theirs["causes"][0]["parameters"]
    assert parameters["floors_of_reference"] < 10
    assert parameters["floors_of_variant"] > 1000
    assert cached["causes"] == []
