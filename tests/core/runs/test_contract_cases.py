"""The worked examples of the metric contract come out exactly, by way of a run file."""

import json

import pytest

from core.runs.reports.report_json import as_json, report_of_run
from tests.core.runs.made_runs import ingested
from tests.places import ROOT

CASES = sorted((ROOT / "tests" / "cases").glob("*.npz"))
CASE = pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)


def unlike(got, want, where=""):
    """Places where `got` is not as the example says. It may say more than the example, never less.

    Integers, booleans, nulls and texts equal and of one type; floats to 1e-9 relative, KL to 1e-6
    relative or 1e-12 absolute.
    """
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return [f"{where}: {got!r}, not an object"]
        missing = [f"{where}/{key}: missing" for key in want if key not in got]
        return missing + [
            bad
            for key in want
            if key in got
            for bad in unlike(got[key], want[key], f"{where}/{key}")
        ]
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return [f"{where}: another length"]
        return [
            bad
            for i, (x, y) in enumerate(zip(got, want, strict=True))
            for bad in unlike(x, y, f"{where}[{i}]")
        ]
    if type(got) is not type(want):
        return [f"{where}: {got!r} ({type(got).__name__}), not {want!r} ({type(want).__name__})"]
    if isinstance(want, float):
        allowed = max(1e-12, 1e-6 * abs(want)) if where.endswith("kl") else 1e-9 * abs(want)
        return [] if abs(got - want) <= allowed else [f"{where}: {got!r}, not {want!r}"]
    return [] if got == want else [f"{where}: {got!r}, not {want!r}"]


def example(path):
    return json.loads(path.with_suffix(".json").read_text())


@CASE
def test_the_example_comes_out_of_the_run_file(path, store):
    with ingested(store, path) as run:
        pairs, classes = report_of_run(run)
        got = as_json(pairs, classes, run.header, with_positions=True)
    assert (
        unlike(
            json.loads(json.dumps(got, allow_nan=False)),
            example(path),
        )
        == []
    )
