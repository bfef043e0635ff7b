"""The worked examples of the metric contract come out exactly, by way of a run file."""

import json

import pytest

from core.runs.reports.report_json import as_json, report_of_run
from tests.core.runs.made_runs import ingested
from tests.places import CASES

DUMPS = sorted(CASES.glob("*.npz"))


def leaves(value, where=""):
    """(place, value) of all that is in a document, of lists their lengths too."""
    if isinstance(value, list):
        yield f"{where}/length", len(value)
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield where, value
        return
    for key, each in value.items():
        yield from leaves(each, f"{where}/{key}")


def unlike(got, want):
    """Places where `got` is not as the example says. It may say more than the example, never less.

    Integers, booleans, nulls and texts equal and of one type; floats to 1e-9 relative, KL to 1e-6
    relative or 1e-12 absolute.
    """
    found = dict(leaves(got))
    wrong = []
    for where, value in leaves(want):
        expected = value
        if isinstance(value, float):
            is_kl = where.endswith("kl")
            expected = pytest.approx(value, rel=1e-6 if is_kl else 1e-9, abs=1e-12 * is_kl)
        here = found.get(where, ...)
        if type(here) is not type(value) or here != expected:
            wrong.append(f"{where}: {here!r}, not {value!r}")
    return wrong


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_the_example_comes_out_of_the_run_file(path, store):
    with ingested(store, path) as run:
        pairs, classes = report_of_run(run)
        report = as_json(pairs, classes, run.header, with_positions=True)
    # tuples and numbers of numpy become what a reader of the JSON gets
    got = json.loads(json.dumps(report, allow_nan=False))
    want = json.loads(path.with_suffix(".json").read_text())
    assert unlike(got, want) == []
