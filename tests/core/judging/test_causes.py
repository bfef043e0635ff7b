"""A temperature on one side is found, with its factor; noise, faults and clean pairs are never called one."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.judging import causes
from core.judging.causes import Sample, Temperature, temperature_of
from core.judging.ingest import ingest
from core.judging.rejudge import judge_stored
from core.judging.uploaded_controls import measure_controls
from core.numerics.formats import BFLOAT16, FLOAT16, FLOAT32, FloatFormat
from core.runs.dumps.dump import open_dump
from core.runs.file.evidence import NOTED, VALIDITY, Check
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.judging.engine_dumps import in_bfloat16, in_float32, saved, states
from tests.core.runs.made_runs import header_of
from tests.said import SAID

X, HEAD = states()
PLAIN = in_bfloat16(X, HEAD, 1).astype(np.float64)
OTHER = in_bfloat16(X, HEAD, 2).astype(np.float64)  # another order of the same sums
FORMATS = (FLOAT32, FLOAT16, BFLOAT16)


def rounded(values: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    return values.astype(np.float32).astype(fmt.values).astype(np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def found(reference: np.ndarray, variant: np.ndarray, fmt: FloatFormat = BFLOAT16) -> Temperature | None:
    return temperature_of(rounded(reference, fmt), rounded(variant, fmt), fmt)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("temperature", [0.1, 0.7, 0.95, 1.05, 2.0])
def test_a_temperature_is_found_with_its_factor_and_what_is_left_is_rounding(temperature, fmt):
    made = found(PLAIN, PLAIN / temperature, fmt)
    assert made is not None
    assert made.factor == pytest.approx(1 / temperature, rel=1e-3)
    assert made.explained > 0.99
    assert made.rows == made.rows_checked == len(PLAIN) // 2
    assert made.left_grids < 1.5  # rounding, and nothing else: none where dividing is exact
    assert temperature != 0.7 or made.left_grids > 0.2
    assert not made.has_constant


@pytest.mark.parametrize("is_log", [False, True])
def test_a_temperature_beside_another_order_of_sums_is_found(is_log):
    """Sides of two engines: the factor explains all but what the two differ by without it."""
    sides = PLAIN, OTHER / 0.7
    if is_log:
        sides = log_softmax(sides[0]), log_softmax(sides[1])
    made = found(*sides)
    assert made is not None
    assert made.factor == pytest.approx(1 / 0.7, rel=1e-2)
    assert made.explained > 0.99
    assert made.has_constant is is_log


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_rounding_alone_is_no_temperature(fmt):
    assert found(PLAIN, OTHER, fmt) is None
    assert found(in_float32(X, HEAD, 1), in_float32(X, HEAD, 2), fmt) is None
    assert found(in_float32(X, HEAD, 1), PLAIN, FLOAT32) is None  # one side in bfloat16
    assert found(PLAIN, PLAIN, fmt) is None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    vocab=st.integers(2, 400),
    noise=st.floats(1e-6, 3),
    tails=st.sampled_from(["normal", "cauchy", "one element", "one row", "relative", "a step"]),
    peak=st.sampled_from([0.0, 30.0, 300.0]),
    fmt=st.sampled_from(FORMATS),
)
def test_noise_of_any_kind_is_no_temperature(seed, rows, vocab, noise, tails, peak, fmt):
    random = np.random.default_rng(seed)
    logits = random.standard_normal((rows, vocab)) * 3
    logits[np.arange(rows), random.integers(0, vocab, rows)] += (
        peak  # a sure token, whose own rounding outweighs all others'
    )
    shape = (rows, vocab)
    moved = {
        "normal": lambda: random.standard_normal(shape) * noise,
        "cauchy": lambda: random.standard_cauchy(shape) * noise,
        "one element": lambda: (random.random(shape) < 1 / vocab) * noise * 10,
        "one row": lambda: (np.arange(rows)[:, None] == rows // 2) * random.standard_normal(shape) * noise * 10,
        "relative": lambda: logits * random.uniform(-1, 1, shape) * 2.0**-8,
        "a step": lambda: logits * random.choice([-1, 1], shape) * 2.0**-8,
    }[tails]()
    assert found(logits, logits + moved, fmt) is None


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_sure_token_does_not_explain_its_own_rounding_because_every_difference_is_asked(is_asked, monkeypatch):
    """Of 300 logits' rounding by a step, that of the largest outweighs all others and is alike in every row that rounds
    the same way.
    """
    if not is_asked:
        monkeypatch.setattr(causes, "_SHRUNK_SHARE", 0.0)
    claimed = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        logits = random.standard_normal((4, 64)) * 3
        logits[np.arange(4), random.integers(0, 64, 4)] += 300
        claimed += found(logits, logits * (1 + random.choice([-1, 1], logits.shape) * 2.0**-8)) is not None
    assert (claimed == 0) is is_asked


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 40),
    vocab=st.integers(64, 400),
    temperature=st.floats(0.2, 5).filter(lambda t: abs(t - 1) > 0.05),
    fmt=st.sampled_from(FORMATS),
    offset=st.floats(-20, 20),
)
def test_every_temperature_beside_a_little_noise_is_found_whatever_the_constant(
    seed, rows, vocab, temperature, fmt, offset
):
    random = np.random.default_rng(seed)
    logits = random.standard_normal((rows, vocab)) * 3
    noise = random.standard_normal((rows, vocab)) * 0.01
    made = found(logits, logits / temperature + offset * random.standard_normal((rows, 1)) + noise, fmt)
    assert made is not None
    assert made.factor == pytest.approx(1 / temperature, rel=0.02)


def test_unrelated_sides_and_flattened_ones_have_no_factor():
    random = np.random.default_rng(0)
    other = random.standard_normal(PLAIN.shape) * PLAIN.std()
    assert found(PLAIN, other) is None
    assert found(PLAIN, -PLAIN) is None
    assert found(PLAIN, np.tanh(PLAIN / 4) * 4) is None  # a soft cap is another cause


def test_a_constant_a_row_alone_is_no_temperature():
    assert found(PLAIN, log_softmax(PLAIN), FLOAT32) is None


def test_a_fault_at_a_third_of_the_positions_does_not_hide_the_temperature():
    variant = OTHER / 0.7
    variant[:: len(PLAIN) // 16] = 0.5
    made = found(PLAIN, variant)
    assert made is not None
    assert made.factor == pytest.approx(1 / 0.7, rel=1e-2)
    assert made.rows < made.rows_checked


def test_nan_and_infinities_are_left_out():
    reference, variant = PLAIN.copy(), PLAIN / 0.7
    reference[3], variant[5, 7], variant[:, :9] = np.nan, np.inf, -np.inf
    made = found(reference, variant)
    assert made is not None
    assert made.factor == pytest.approx(1 / 0.7, rel=1e-3)
    assert found(np.full_like(PLAIN, np.nan), PLAIN) is None


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_a_sample_is_of_the_same_rows_and_tokens_however_they_come(chunk):
    header = header_of("float32", (300, 700), 3000, 2)
    bits = np.arange(1000 * 3000, dtype=np.uint32).reshape(1000, 3000)
    sample = Sample(header)
    for start in range(0, 1000, chunk):
        sample.see(bits[start : start + chunk])
    places = sample.values.astype(np.float32).view(np.uint32)
    assert places.shape == (256, 512)
    assert (places[0, 0], places[-1, -1]) == (0, 1000 * 3000 - 1)
    assert len(np.unique(np.diff(places // 3000, axis=0))) <= 2  # evenly


def stored(folder: Path, **arrays: np.ndarray) -> RunReader:
    store = Store(folder / "store")
    return RunReader(store.path_of(ingest(store, [saved(folder / "dump.npz", **arrays)])))


def test_a_temperature_stands_first_in_the_verdict_with_a_noted_row(tmp_path):
    hot = (OTHER / 0.7).astype(ml_dtypes.bfloat16).astype(np.float32)
    with stored(tmp_path, reference=PLAIN.astype(np.float32), variant=hot) as run:
        (pair,) = run.pairs
        (row,) = [row for row in run.evidence(0) if row.check is Check.TEMPERATURE]
        assert (pair.verdict, row.rung, row.outcome) == ("undecided", VALIDITY, NOTED)
        assert SAID["logits-1-43-times-as-a-temperature"].begins(pair.because)
        assert "--float32" in pair.because
        assert row.figures.explained_share > 0.99


def test_a_clean_pair_has_no_such_row_and_its_verdict_says_nothing_of_it(tmp_path):
    with stored(tmp_path, reference=PLAIN.astype(np.float32), variant=OTHER.astype(np.float32)) as run:
        assert not [row for row in run.evidence(0) if row.check is Check.TEMPERATURE]
        assert "temperature" not in run.pairs[0].because


def test_a_bug_that_controls_find_names_the_temperature_first(tmp_path):
    """In float32 the pair does not shrink, which is no rounding: the likely cause is said before it."""
    wide = in_float32(X, HEAD, 1), in_float32(X, HEAD, 2) / np.float32(0.7)
    hot = (OTHER / 0.7).astype(ml_dtypes.bfloat16).astype(np.float32)
    with stored(tmp_path, reference=PLAIN.astype(np.float32), variant=hot) as run:
        controls = measure_controls(run, float32=[saved(tmp_path / "wide.npz", reference=wide[0], variant=wide[1])])
        store = Store(tmp_path / "store")
        with RunReader(store.path_of(judge_stored(store, run, controls))) as judged:
            (pair,) = judged.pairs
    assert pair.verdict == "bug suspected"
    assert SAID["logits-1-43-times"].begins(pair.because)
    assert "In float32 the pair is" in pair.because


@pytest.mark.parametrize("path", sorted(Path("tests/cases").glob("*.npz")), ids=lambda path: path.stem)
def test_no_shared_case_has_a_temperature(path):
    with open_dump([path]) as dump:
        (_, sides), *_ = dump.chunks()
        values = [side.view(dump._format.values).astype(np.float64) for side in sides]
        assert [temperature_of(values[0], other, dump._format) for other in values[1:]] == [None] * (len(values) - 1)
