"""Mitigations in the run file, and the sentence that says what to change and what it costs."""

from dataclasses import replace

import pytest

from core.runs.tables.mitigations import advice
from tests.core.runs.made_runs import opened
from tests.core.runs.mitigation_runs import ROWS, mitigation_run, row

PLAIN, FLOAT32, REFUSED, _ = ROWS
UNSIZED = {"max_abs": None, "rms": None, "max_ulps": None, "noise_ratio": None}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            ROWS,
            (
                "batch-invariant kernels: all logits equal, throughput 80.0% (reference), 75.0%"
                " (variant)"
            ),
        ),
        (ROWS, "float32: RMS difference 10,000x smaller, flips 3 -> 0"),
        (
            (*ROWS, row("SDPA math backend", 0, 0.0, 0, (0.95, 0.9))),
            "SDPA math backend: all logits equal",
        ),
        ((replace(PLAIN, neq=0), *ROWS[1:]), "nothing to change"),
        ((PLAIN, replace(PLAIN, name="deterministic algorithms")), "None of 1 changes halves"),
        ((PLAIN, REFUSED), "None of 0 changes"),
        # NaN on one side only: the rms over the finite logits alone could be anything
        ((replace(PLAIN, **UNSIZED), FLOAT32), "float32: no NaN on one side, flips 3 -> 0"),
        ((PLAIN, replace(FLOAT32, **UNSIZED)), "None of 1 changes halves"),
    ],
)
def test_the_advice_names_what_makes_the_sides_agree_and_its_cost(rows, says):
    assert advice(rows).startswith(says) or says in advice(rows)


def test_mitigations_are_read_as_they_were_written(store):
    with opened(store, mitigation_run(store)) as run:
        assert run.mitigations == {0: list(ROWS)}
    with opened(store, mitigation_run(store, "without", ())) as run:
        assert run.mitigations == {}
