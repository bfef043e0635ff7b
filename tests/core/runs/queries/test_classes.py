"""Classes of equal bits against each other, and what was swept; expected figures are counted with numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.numerics.formats import values_of
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.queries.classes import bytes_to_compare, classes, every_two, sentence, sweep
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.runs.made_runs import write_run

ROWS, VOCAB = 9, 200


def stored(folder: Path, paths: list[str], kinds: list[int], dtype: str = "bfloat16") -> RunReader:
    """A run whose sides of equal `kinds` are equal bit for bit."""
    header = RunHeader(
        "classes",
        dtype,
        VOCAB,
        (Prompt(ROWS),),
        tuple(SideHeader(f"{path} #{place}", path, dtype) for place, path in enumerate(paths)),
        Provenance("capture"),
    )
    fmt = header.format
    plain = (np.random.default_rng(0).standard_normal((ROWS, VOCAB)) * 3).astype(fmt.values).view(fmt.carrier)
    sides = []
    for kind in kinds:
        bits = plain.copy()
        if kind:
            where = np.random.default_rng(kind).random(bits.shape) < 0.1 * kind
            bits[where] += np.random.default_rng(kind).integers(0, 3, int(where.sum()), dtype=fmt.carrier)
        sides.append(bits)
    store = Store(folder)
    return RunReader(write_run(store, header, sides))


def test_every_two_classes_are_compared_and_the_figures_are_numpys(tmp_path):
    run = stored(tmp_path, ["decode"] + [f"decode+batch:{n}" for n in (2, 3, 4, 8)], [0, 1, 1, 2, 3])
    found, pairs = classes(run), every_two(run)
    assert found["side"].tolist() == [0, 1, 3, 4]
    assert found["sides"][1].tolist() == ["decode+batch:2 #1", "decode+batch:3 #2"]
    assert found["neq"].tolist()[1:] == [run.pairs[place].summary.neq for place in (0, 2, 3)]
    assert "5 sides in 4 classes of equal bits**, 3 sides alone" in sentence(found)
    assert pairs[["class", "other_class"]].to_numpy().tolist() == [[i, j] for i in range(4) for j in range(i + 1, 4)]
    values = [values_of(run.read_rows(side, 0, ROWS), run.header.format).astype(np.float64) for side in found["side"]]
    for row in pairs.to_dict("records"):
        ours, theirs = values[row["class"]], values[row["other_class"]]
        assert row["neq"] == int((ours != theirs).sum())
        assert row["max_abs"] == np.abs(ours - theirs).max()
        assert row["flips"] == int((ours.argmax(1) != theirs.argmax(1)).sum())
    assert bytes_to_compare(run, 4) == 3 * ROWS * VOCAB * 2


def test_rows_taken_a_few_at_a_time_add_up_to_the_same_and_no_row_is_read_twice(tmp_path, monkeypatch):
    run = stored(tmp_path, [f"decode+batch:{n}" for n in (1, 2, 3, 4)], [0, 1, 2, 3])
    whole = every_two(run)
    monkeypatch.setattr("core.runs.queries.classes._CHUNK_BYTES", 4 * 2 * VOCAB * 2)  # two rows of four classes
    read = []
    rows_of = run.read_rows
    monkeypatch.setattr(
        run, "read_rows", lambda side, start, stop: read.append((side, start, stop)) or rows_of(side, start, stop)
    )
    pieces = every_two(run)
    for name in ("neq", "flips", "max_abs"):
        assert pieces[name].tolist() == whole[name].tolist()
    assert pieces["rms_row_ulps"].tolist() == pytest.approx(whole["rms_row_ulps"].tolist(), rel=1e-12)
    assert sorted(read) == [(side, start, min(start + 2, ROWS)) for side in (1, 2, 3) for start in range(0, ROWS, 2)]


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["decode", "decode+batch:2", "decode+batch:3"], ("batch", (1, 2, 3))),
        (["prefill", "decode+batch:2", "decode+batch:4", "decode+batch:8"], ("batch", (2, 4, 8))),
        (["prefill", "reuse:1", "reuse:16", "reuse:31"], ("reuse", (1, 16, 31))),
        (
            ["decode+batch:4", "decode+batch:4+row:1", "decode+batch:4+row:2", "decode+batch:4+row:3"],
            ("row", (1, 2, 3)),
        ),
        (["decode", "decode+batch:2"], None),
        (["decode", "decode+batch:2", "prefill+batch:3"], None),
        (["prefill", "decode", "decode"], None),
        (["prefill", "prefill+attn:eager", "prefill+attn:sdpa", "prefill+attn:x"], None),
        (["", "", ""], None),
    ],
)
def test_what_was_swept_is_told_from_the_paths(paths, expected, tmp_path):
    found = sweep(stored(tmp_path, paths, [0] * len(paths)))
    assert (None if found is None else (found[0], tuple(found[1]["value"]))) == expected
