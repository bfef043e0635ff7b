"""The sentence that each page begins with: numbers that are known, in the singular and in the plural, and where there
is nothing.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from core.runs.file.evidence import FAILED, NOTED, PASSED
from core.runs.tables.remedies import advice
from core.runs.views import compare, flips, heatmap, kernels, kv_cache, layers, near_ties, repeats
from core.runs.views.kernels import side_by_side
from core.runs.views.repeats import BitClass
from core.runs.views.verdicts import Rung, ladder_in_words
from tests.core.runs.kernel_runs import kernel_lists
from tests.core.runs.remedy_runs import ROWS

QUIET = {
    "prompt": 0,
    "is_flip": False,
    "near_tie": False,
    "neq": 0,
    "max_abs": 0.0,
    "max_row_ulps": 0.0,
    "max_ulps": 0,
    "reference_margin": 4.0,
    "variant_margin": 4.0,
    "reference_margin_ulps": 64,
    "variant_margin_ulps": 64,
    "reference_token": 1,
    "variant_token": 1,
}
MOVED = {"neq": 2, "max_abs": 0.5, "max_row_ulps": 1.25, "max_ulps": 9}
NEAR = MOVED | {"near_tie": True, "reference_margin_ulps": 2, "variant_margin_ulps": 1}
# row ULPs here are 0.4 logits: a margin of 0.5 lies within twice the usual difference, one of 4 beyond it
FLIP = NEAR | {"is_flip": True, "variant_token": 2, "reference_margin": 0.5, "variant_margin": 0.5}
FAR_FLIP = FLIP | {"reference_margin": 4.0, "variant_margin": 4.0}


def table(*rows: dict) -> pd.DataFrame:
    return pd.DataFrame([{**QUIET, "position": position, **row} for position, row in enumerate(rows)])


def run(positions: int, vocab: int = 10, prompts: int = 1) -> SimpleNamespace:
    header = SimpleNamespace(rows=positions, vocab=vocab, prompts=[None] * prompts, compute_dtype="bfloat16")
    return SimpleNamespace(header=header)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [NEAR, FLIP, FLIP, {}],
            "**3 of 4 (75.0%) positions are near ties**, 2 of which flip; the smallest margin is 1 ULP of bfloat16.",
        ),
        (
            [NEAR, FLIP, {}, {}],
            "**2 of 4 (50.0%) positions are near ties**, 1 of which flips; the smallest margin is 1 ULP of bfloat16.",
        ),
        (
            [NEAR, NEAR | {"variant_margin_ulps": 0}],
            "**2 of 2 (100.0%) positions are near ties**, none of which flips; the smallest margin is 0 ULPs of"
            " bfloat16.",
        ),
        (
            [FLIP, {}],
            "**1 of 2 (50.0%) positions is a near tie**, and it flips; the smallest margin is 1 ULP of bfloat16.",
        ),
        (
            [NEAR, {}],
            "**1 of 2 (50.0%) positions is a near tie**, and it does not flip; the smallest margin is 1 ULP of"
            " bfloat16.",
        ),
        (
            [{}, MOVED | {"variant_margin": 1.25}],
            "**No position of 2 is a near tie**: the smallest margin is 1.25 logits, at position 1, where logits"
            " differ by at most 0.5.",
        ),
        (
            [{"reference_margin": np.nan, "variant_margin": np.nan}],
            "**No position of 1 has a finite margin**, so nothing says which could flip.",
        ),
    ],
)
def test_near_ties(rows, said):
    bound = " (margin at most 2 row ULPs)"
    assert near_ties.sentence(table(*rows), "bfloat16").replace(bound, "") == said


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{}, {}], "No flips: both sides have the same argmax at all 2 positions."),
        ([{}, MOVED, FLIP], "**1 flip in 3 positions**, at position 2. The flip lies within the noise."),
        (
            [MOVED, FLIP | {"prompt": 1}, FLIP | {"prompt": 1}, {}],
            "**2 flips in 4 positions**, the first at position 1 of prompt 1. All 2 flips lie within the noise.",
        ),
        (
            [MOVED, MOVED, FAR_FLIP, FLIP],
            "**2 flips in 4 positions**, the first at position 2. 1 of 2 flips lies within the noise; beyond it:"
            " position 2 (margin 4 logits).",
        ),
    ],
)
def test_flips(rows, said):
    assert flips.sentence(table(*rows)) == said


@pytest.mark.parametrize(
    ("rows", "prompts", "said"),
    [
        ([{}, {}], 1, "**Nothing differs**: all 20 logits have the same value on both sides."),
        (
            [{}, MOVED],
            1,
            "**2 of 20 (10.0%) logits differ**, at 1 of 2 positions. Max 0.5 logits (position 1); max 1.25 row ULPs.",
        ),
        (
            [MOVED, MOVED | {"prompt": 1, "max_abs": 0.75}],
            2,
            "**4 of 20 (20.0%) logits differ**, at 2 of 2 positions. Max 0.75 logits (prompt 1, position 1); max 1.25"
            " row ULPs.",
        ),
        (
            [{"neq": 1, "max_abs": np.nan}],
            1,
            "**1 of 10 (10.0%) logits differs**, at 1 of 1 position, by NaN or infinity on one side only.",
        ),
    ],
)
def test_heatmap(rows, prompts, said):
    assert heatmap.sentence(run(len(rows), prompts=prompts), table(*rows)) == said


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (["ab"], "**All 2 sides are equal bit for bit.**"),
        (["a", "b"], "**2 sides in 2 classes of equal bits**, each side alone in its class."),
        (["ab", "c"], "**3 sides in 2 classes of equal bits**, 1 side alone in its class."),
        (["ab", "c", "d"], "**4 sides in 3 classes of equal bits**, 2 sides alone in their class."),
        (["ab", "cd"], "**4 sides in 2 classes of equal bits**."),
    ],
)
def test_repeats(classes, said):
    assert repeats.sentence([BitClass(0, tuple(members)) for members in classes]) == said


def compared(share: float, *rows: dict, ids: tuple[int, ...] = (1, 2)) -> SimpleNamespace:
    found = table(*rows)
    summary = SimpleNamespace(neq_share=share, flips=int(found["is_flip"].sum()))
    of = SimpleNamespace(header=SimpleNamespace(rows=len(rows), prompts=[SimpleNamespace(token_ids=ids)]))
    return SimpleNamespace(pair=SimpleNamespace(summary=summary), table=found, run=of)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (
            [compared(0.25, FLIP, FLIP), compared(0.5, FLIP, {})],
            "**Logits that differ: 25.0% vs 50.0%. Positions that flip: 100.0% vs 50.0%.** Flips in every run: 1 of 2.",
        ),
        (
            [compared(0.25, {}, {}), compared(0.5, {}, {}), compared(0.0, {}, {})],
            "**Logits that differ: 25.0% vs 50.0% vs 0.0%. Positions that flip: 0.0% vs 0.0% vs 0.0%.**",
        ),
        (
            [compared(0.25, FLIP), compared(0.5, {}, ids=(3,))],
            "**Logits that differ: 25.0% vs 50.0%. Positions that flip: 100.0% vs 0.0%.**",
        ),
    ],
)
def test_compare(pairs, said):
    assert compare.sentence(pairs) == said


def test_kernels():
    reference, variant = kernel_lists()
    names = ("prefill", "prefill+batch:2")
    assert "1 runs only in `prefill+batch:2`" in kernels.sentence(side_by_side(reference, variant), names)
    assert "sides launch the same 3" in kernels.sentence(side_by_side(reference, reference), names)
    assert "seen on either side." in kernels.sentence([], names)


PLACE = "first in layer 1's keys: head 2, position 5."


def cache_figures(neq: int, kinds: tuple[str, ...] = ("key",)) -> kv_cache.CacheFigures:
    place = (1, kinds, 0, 5, 2) if neq else (None, (), None, None, None)
    return kv_cache.CacheFigures(8, neq, neq / 8, 0.0, 0.0, 0, 0.0, None, None, 0, *place)


@pytest.mark.parametrize(
    ("neq", "layer_0", "said"),
    [
        (0, 0, "Nothing differs: both caches are equal in all 8 elements."),
        (1, 0, f"**1 of 8 (12.5%) elements differs**, {PLACE} Layer 0's keys are all equal."),
        (3, 1, f"**3 of 8 (37.5%) elements differ**, {PLACE} **1 of 8** elements of layer 0's keys"),
        (3, None, f"**3 of 8 (37.5%) elements differ**, {PLACE}"),
    ],
)
def test_kv_cache(neq, layer_0, said):
    first = None if layer_0 is None else cache_figures(layer_0)
    found = kv_cache.CacheSummary(cache_figures(neq), cache_figures(0), cache_figures(0), first)
    assert kv_cache.sentence(found, False).startswith(said)
    if layer_0 is None:
        assert kv_cache.sentence(found, False) == said
    assert ("prompt 0, head 2" in kv_cache.sentence(found, True)) == (neq > 0)


def module(name: str, neq: int, position: int | None, kind: str = "norm") -> layers.ModuleFigures:
    return layers.ModuleFigures(
        0, name, kind, 0, "float32", 4, 8, neq, neq / 8, 0.0, 0.0, None, None, 0, 0.0, None, None, 0, 0, position
    )


def test_layers():
    first, last = module("a.norm", 3, 2), module("logits", 1, 2, "head")
    found = layers.LayerSummary(2, 4, first, None, last, False)
    assert "Overall 1 of 8 (12.5%)" in layers.sentence(found, True, (3, 4))
    none = dataclasses.replace(found, first=None)
    assert "module differs: 2 outputs, equal" in layers.sentence(none, False, (0, 0))
    strange = dataclasses.replace(found, first=module("x", 1, 0, "](http://evil)"))
    assert "(`](http://evil)`)" in layers.sentence(strange, False, (1, 4))


def test_remedies_of_which_none_helps():
    stubborn = dataclasses.replace(ROWS[0], name="deterministic algorithms")
    assert "measured does not halve" in advice((ROWS[0], stubborn))
    assert "measured halves the difference" in advice((ROWS[0], stubborn, stubborn))


def rung(name: str, *outcomes: str) -> Rung:
    return Rung(name, tuple(SimpleNamespace(outcome=outcome) for outcome in outcomes), "")


@pytest.mark.parametrize(
    ("rungs", "said"),
    [
        ([rung("a"), rung("b")], "0 of 2 rungs run"),
        ([rung("a", PASSED)], "1 of 1 rung run: 1 passed"),
        ([rung("a"), rung("b", PASSED), rung("c", NOTED, PASSED)], "2 of 3 rungs run: 1 noted, 1 passed"),
        ([rung("a", PASSED), rung("b", PASSED, FAILED, NOTED)], "2 of 2 rungs run: 1 failed, 1 passed"),
    ],
)
def test_the_ladder_counts_its_rungs_by_their_gravest_outcome(rungs, said):
    assert ladder_in_words(rungs) == said
