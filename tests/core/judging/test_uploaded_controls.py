"""Controls raise the verdict of a dump, planted faults are caught, and what is no control is
refused.
"""

import numpy as np
import pytest

from core.checks.narrowing import NARROWING
from core.errors import DumpError, StoreError, UsageError
from core.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    PASSED,
    RERUN,
    VALIDITY,
)
from core.judging.dump_controls import judge_upload
from core.judging.ingest import ingest
from core.judging.stored import judge_stored
from core.judging.uploaded_controls import measure_controls
from core.runs.queries.verdicts import deciding_controls, next_command
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.evidence import rows_of
from tests.core.judging.engine_dumps import ROWS, in_bfloat16, in_float32, saved, states, with_fault
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import ingested, opened
from tests.covering import few

X, HEAD = states()
FAULT = with_fault(X)
REFERENCE = in_bfloat16(X, HEAD, 1)
VARIANT = in_bfloat16(X, HEAD, 2)
PAIR_IN_BFLOAT16 = {"reference": REFERENCE, "variant": VARIANT}
FLOOR = {f"way_{order}": in_float32(X, HEAD, order) for order in (11, 12, 13, 14, 15)}


def pair_with(x):
    """The pair in float32, whose variant computes from `x`."""
    return {"reference": in_float32(X, HEAD, 1), "variant": in_float32(x, HEAD, 2)}


PAIR = pair_with(X)


@pytest.fixture(scope="module")
def dump_of(tmp_path_factory):
    """A stored bfloat16 dump whose variant is given; each once."""
    folder = tmp_path_factory.mktemp("dumps")
    store = Store(folder / "store")
    run_ids = {}

    def stored(variant):
        key = variant.tobytes()
        if key not in run_ids:
            sides = {
                "reference": REFERENCE,
                "variant": variant,
                "token_ids": np.arange(ROWS),
            }
            run_ids[key] = ingest(store, [saved(folder / "dump.npz", **sides)])
        return store, run_ids[key]

    return stored


@pytest.fixture
def judged(dump_of, tmp_path):
    """`judged(variant, ...)`: the verdict of a dump with controls given as dicts of arrays; nothing
    is stored again.
    """

    def judge(variant, before=None, **controls):
        store, run_id = dump_of(variant)
        with opened(store, run_id) as run:
            measured = measure_controls(run, **on_disk(tmp_path, controls))
            checks = [rows_of(run.evidence(0), VALIDITY)]
            return judge_upload(run, checks, [], measured, [] if before is None else [before])[0]

    return judge


def on_disk(folder, controls):
    """Dicts of arrays as dumps; all else as it is."""
    return {
        what: [saved(folder / f"{what}.npz", **arrays)] if isinstance(arrays, dict) else arrays
        for what, arrays in controls.items()
    }


def row_of(verdict, group):
    return rows_of(verdict.evidence, group)[0]


@pytest.mark.parametrize(
    ("x", "verdict"),
    [
        (X, "rounding"),
        (FAULT, "bug suspected"),
        (with_fault(X, rows=[29], factor=1.5), "bug suspected"),
    ],
    ids=["sound", "fault", "fault at one position"],
)
def test_a_float32_pair_alone_decides(x, verdict, judged):
    """The fault is within the rounding of bfloat16 in size."""
    assert judged(in_bfloat16(x, HEAD, 2), float32=pair_with(x)).name == verdict


@pytest.mark.parametrize(
    ("is_fault", "verdict"),
    [
        (False, "rounding"),
        (True, "bug suspected"),
    ],
)
def test_a_floor_of_other_ways_decides_by_the_noise_ratio(is_fault, verdict, judged):
    x = FAULT if is_fault else X
    pair = pair_with(x)
    found = judged(in_bfloat16(x, HEAD, 2), float32=pair, floor=FLOOR)
    assert found.name == verdict
    assert (found.noise_ratio > 100) if is_fault else (0.5 < found.noise_ratio < 2)
    row = row_of(found, FLOAT32)
    assert row.outcome == (FAILED if is_fault else PASSED)
    (floor,) = found.floors
    assert floor.compute_dtype == "float32"
    assert len(floor.floor_rms) == ROWS
    difference = pair["variant"].astype(np.float64) - pair["reference"]
    expected = np.sqrt(np.mean(difference**2))
    assert row.figures.pair_rms_logits == pytest.approx(expected, rel=1e-12)


def test_equal_bits_in_16_bits_hide_no_fault_where_float32_and_a_floor_are_given(
    judged,
):
    found = judged(REFERENCE, float32=pair_with(FAULT), floor=FLOOR)
    assert found.name == "bug suspected"


@pytest.mark.parametrize("side", few(["reference", "variant"], "variant"))
def test_a_rerun_that_moves_is_nondeterministic_and_one_that_does_not_passes(
    side,
    judged,
):
    again = PAIR_IN_BFLOAT16
    found = judged(VARIANT, rerun=again)
    assert found.name == "likely rounding"
    assert row_of(found, RERUN).outcome == PASSED
    found = judged(VARIANT, rerun={**again, side: in_bfloat16(X, HEAD, 9)})
    assert found.name == "nondeterministic"
    assert row_of(found, RERUN).outcome == FAILED
    assert row_of(found, RERUN).figures.not_repeatable == (side,)
    one_bit = again[side].copy()
    # bit 16 is the last one of a bfloat16 value in float32
    one_bit.view(np.uint32)[ROWS - 1, 0] ^= 1 << 16
    assert row_of(judged(VARIANT, rerun={**again, side: one_bit}), RERUN).outcome == FAILED


def test_other_neighbours_that_change_bits_are_a_leak_unless_there_are_experts(judged):
    found = judged(VARIANT, neighbours={"variant": VARIANT})
    assert found.name == "likely rounding"
    assert row_of(found, NEIGHBOURS).outcome == PASSED
    leaked = VARIANT.copy()
    leaked[3] = VARIANT[4]
    for experts, verdict, outcome in (
        (False, "bug suspected", FAILED),
        (True, "likely rounding", NOTED),
    ):
        found = judged(VARIANT, neighbours={"variant": leaked}, has_experts=experts)
        assert found.name == verdict
        assert row_of(found, NEIGHBOURS).outcome == outcome


@pytest.mark.parametrize("is_together", [True, False])
def test_a_side_that_does_not_repeat_its_bits_leaks_only_where_it_moves_further_beside_others(
    is_together,
    judged,
):
    """Whether both were uploaded at once or one after the other."""
    variant, again, leaked = (in_bfloat16(X, HEAD, order) for order in (2, 9, 7))
    for beside, verdict, outcome in (
        (leaked, "nondeterministic", NOTED),
        (np.roll(leaked, 1, axis=0), "bug suspected", FAILED),
    ):
        neighbours, rerun = {"variant": beside}, {"variant": again}
        if is_together:
            found = judged(variant, neighbours=neighbours, rerun=rerun)
        else:
            found = judged(variant, judged(variant, neighbours=neighbours), rerun=rerun)
        row = row_of(found, NEIGHBOURS)
        assert found.name == verdict
        assert row.outcome == outcome
        assert ("leaks" in row.says) == (outcome == FAILED)


def test_the_judged_run_has_the_same_bits_and_the_old_one_stays_as_it_is(tmp_path):
    store = Store(tmp_path / "store")
    dump = saved(
        tmp_path / "dump.npz",
        **PAIR_IN_BFLOAT16,
        token_ids=np.arange(ROWS),
    )
    with ingested(store, dump) as before:
        controls = measure_controls(before, **on_disk(tmp_path, {"rerun": {"variant": VARIANT}}))
        run = opened(store, judge_stored(store, before, controls, name="with a rerun"))
        for side in (0, 1):
            assert np.array_equal(run.read_rows(side, 0, ROWS), before.read_rows(side, 0, ROWS))
        assert before.pairs[0].verdict == "likely rounding"
        assert not rows_of(before.evidence(0), RERUN)
        assert [row.outcome for row in rows_of(run.evidence(0), RERUN)] == [PASSED]
        assert f"Judged from run {before.run_id}." in run.header.provenance.note
    assert run.header.name == "with a rerun"
    # temporary files of a store have names that begin with a dot
    names = [path.name for path in (tmp_path / "store").iterdir()]
    assert not any(name.startswith(".") for name in names)


REFUSED = {
    "fewer positions": (
        "rerun",
        {"variant": VARIANT[:-1]},
        "47 positions x 600 tokens; expected 48",
    ),
    "other tokens": (
        "rerun",
        {"variant": VARIANT, "token_ids": np.arange(ROWS) + 1},
        "token_ids",
    ),
    "other names": ("rerun", {"nobody": VARIANT}, "has sides 'nobody'"),
    "float32 values in a rerun": (
        "rerun",
        {"variant": in_float32(X, HEAD, 2)},
        "which is no bfloat16 value",
    ),
    "an upcast pair": ("float32", PAIR_IN_BFLOAT16, "holds bfloat16 values only"),
    "half a pair": ("float32", {"variant": in_float32(X, HEAD, 2)}, "expected 2"),
    "two paths": ("floor", {"a": in_float32(X, HEAD, 2), "b": in_float32(X, HEAD, 3)}, "2 sides"),
    "equal but for a zero's sign": (
        "floor",
        {
            "a": FLOOR["way_11"] * 0.0,
            "b": -0.0 * FLOOR["way_11"],
            "c": FLOOR["way_12"],
        },
        "has 2 distinct of 3 paths",
    ),
    "the variant as a path": (
        "floor",
        {**FLOOR, "x": in_float32(X, HEAD, 2)},
        "'x' of the noise floor is the variant",
    ),
    "a pair of other logits": (
        "float32",
        {"reference": in_float32(X[::-1], HEAD, 1), "variant": in_float32(X[::-1], HEAD, 2)},
        "other weights or tokens",
    ),
    "one name shared": (
        "rerun",
        {"variant": VARIANT, "again": REFERENCE},
        "has sides 'variant' and 'again'",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_no_control_is_refused_in_a_sentence(case, judged):
    what, arrays, sentence = REFUSED[case]
    given = {what: arrays} if what != "floor" else {"float32": PAIR, "floor": arrays}
    with pytest.raises(DumpError, match=sentence):
        judged(VARIANT, **given)


# ---- controls that would turn a fault into rounding


def test_a_fault_of_the_16_bit_kernels_alone_is_seen_beside_a_sound_float32_pair(
    judged,
):
    found = judged(in_bfloat16(with_fault(X, factor=1.5), HEAD, 2), float32=PAIR)
    assert found.name == "bug suspected"
    assert [row.outcome for row in rows_of(found.evidence, NARROWING)] == [FAILED]


# the fault on trial, 2,000 floors and more
WRONG = {order: in_float32(with_fault(X, factor=1.5), HEAD, order) for order in (21, 22)}
SPLIT = "two kinds"


def at_row(row, of, onto):
    """`onto`, whose row is that of another array."""
    changed = onto.copy()
    changed[row] = of[row]
    return changed


def hardly(row, onto):
    """The row is that of `way_11` but for one logit: a root of 600 less than what rounding does."""
    changed = at_row(row, FLOOR["way_11"], onto)
    changed[row, 3] = np.nextafter(changed[row, 3], np.float32(onto[row, 4]))
    return changed


EACH_WITH_A_FAULT = {
    f"way {part}": in_float32(with_fault(X, factor=1 + part / 100), HEAD, 40 + part)
    for part in (-10, -5, 5, 10)
}
# Five spacings at position 29, about as much again as rounding does at all others together.
UP = np.ones((ROWS, 1), np.float32)
UP[29] = 1 + 5 * 2**-23


@pytest.mark.parametrize(
    ("floor", "sentence"),
    [
        (
            {f"w{order}": in_float32(states(7)[0], HEAD, order) for order in (1, 2, 3, 4)},
            "of another pair",
        ),
        ({**FLOOR, "broken": in_float32(FAULT, HEAD, 20)}, SPLIT),
        (
            {
                "a": FLOOR["way_11"],
                "b": at_row(0, FLOOR["way_12"], FLOOR["way_11"]),
                "c": WRONG[21],
                "d": WRONG[22],
            },
            SPLIT,
        ),
        (
            {
                "a": FLOOR["way_11"],
                "b": WRONG[21],
                "c": at_row(slice(9), FLOOR["way_12"], WRONG[21]),
            },
            "no three paths",
        ),
        (
            {
                "a": FLOOR["way_11"],
                "b": hardly(29, FLOOR["way_12"]),
                "c": hardly(29, FLOOR["way_13"]),
                "jumps": FLOOR["way_14"] * UP,
            },
            "uneven at position 29",
        ),
        (EACH_WITH_A_FAULT, "is wider than float32 rounds"),
        (
            {
                "a": FLOOR["way_11"],
                **{
                    n: np.concatenate([FLOOR["way_11"][:40], FLOOR[n][40:]])
                    for n in ("way_12", "way_13")
                },
            },
            "is too narrow",
        ),
    ],
)
def test_a_floor_that_is_none_decides_nothing(floor, sentence, judged):
    """It is left aside with the reason, and what decides is what would have decided without it:
    never the fault within the floor itself.
    """
    for x, verdict in ((X, "rounding"), (with_fault(X, factor=1.5), "bug suspected")):
        found = judged(in_bfloat16(x, HEAD, 2), float32=pair_with(x), floor=floor)
        assert found.name == verdict
        assert found.noise_ratio is None
        aside, _ = rows_of(found.evidence, FLOAT32)
        assert sentence in aside.says
        assert aside.outcome == MISSING


def test_a_floor_is_left_aside_if_the_reference_in_float32_has_the_values_of_16_bits(judged):
    """Then nothing tells how wide rounding in float32 is."""
    pair = {"reference": REFERENCE, "variant": PAIR["variant"]}
    found = judged(VARIANT, float32=pair, floor=FLOOR)
    assert found.noise_ratio is None
    assert any("The uploaded floor is" in row.says for row in found.evidence)


def test_a_float32_dump_whose_floor_is_refused_is_undecided_and_is_not_asked_for_a_floor_again(
    store,
    tmp_path,
):
    """There is no pair in 16 bits beside which it could shrink."""
    sides = {
        "reference": in_float32(X, HEAD, 1),
        "variant": in_float32(with_fault(X, factor=1.5), HEAD, 2),
    }
    dump = saved(tmp_path / "d.npz", **sides, token_ids=np.arange(ROWS))
    ways = saved(tmp_path / "w.npz", **EACH_WITH_A_FAULT)
    with ingested(store, dump) as run:
        controls = measure_controls(run, floor=[ways])
        judged_run = opened(store, judge_stored(store, run, controls))
    (pair,) = judged_run.pairs
    assert pair.verdict == "undecided"
    assert next_command(judged_run, pair) == f"ulpscope verdict {judged_run.run_id} --model MODEL"
    assert [row.outcome for row in rows_of(judged_run.evidence(0), FLOAT32)] == [MISSING]
    # what a page offers
    assert "--floor" not in " ".join(deciding_controls(judged_run, judged_run.evidence(0)))


def test_a_floor_without_the_pair_in_float32_is_refused(judged):
    with pytest.raises(UsageError, match="--float32"):
        judged(VARIANT, floor=FLOOR)


def test_a_run_without_its_pair_gets_a_sentence_and_no_verdict(store, tmp_path):
    path = store.path_of(ingest(store, [saved(tmp_path / "d.npz", **PAIR_IN_BFLOAT16)]))
    damaged(path, "DELETE FROM pair")
    with pytest.raises(StoreError), RunReader(path) as run:
        judge_stored(store, run, measure_controls(run))
    assert store.paths() == [path]
