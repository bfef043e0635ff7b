"""Classes of equal bits, and what was swept."""

import numpy as np
import pytest

from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.queries.classes import classes, sentence, sweep
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.runs.made_runs import calm_sides, write_run

ROWS, VOCAB = 9, 200


def stored(folder, paths, kinds, dtype="bfloat16"):
    """A run whose sides of equal `kinds` are equal bit for bit."""
    header = RunHeader(
        "classes",
        dtype,
        VOCAB,
        (Prompt(ROWS),),
        tuple(SideHeader(f"{path} #{place}", path, dtype) for place, path in enumerate(paths)),
        Provenance("capture"),
    )
    plain = calm_sides(header)[0]
    sides = []
    for kind in kinds:
        bits = plain.copy()
        if kind:
            random = np.random.default_rng(kind)
            steps = random.integers(0, 3, bits.shape, dtype=bits.dtype)
            bits += steps * (random.random(bits.shape) < 0.1 * kind)
        sides.append(bits)
    store = Store(folder)
    return RunReader(write_run(store, header, sides))


def test_sides_of_equal_bits_are_one_class_with_the_figures_of_its_first(tmp_path):
    run = stored(
        tmp_path,
        ["decode"] + [f"decode+batch:{n}" for n in (2, 3, 4, 8)],
        [0, 1, 1, 2, 3],
    )
    found = classes(run)
    assert found["side"].tolist() == [0, 1, 3, 4]
    assert found["sides"][1].tolist() == ["decode+batch:2 #1", "decode+batch:3 #2"]
    counts = [pair.summary.neq for pair in run.pairs]
    assert found["neq"].tolist()[1:] == [counts[0], counts[2], counts[3]]
    assert "5 sides in 4 classes of equal bits**, 3 sides alone" in sentence(found)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["decode", "decode+batch:2", "decode+batch:3"], ("batch", (1, 2, 3))),
        (["prefill", "decode+batch:2", "decode+batch:4", "decode+batch:8"], ("batch", (2, 4, 8))),
        (["prefill", "reuse:1", "reuse:16", "reuse:31"], ("reuse", (1, 16, 31))),
        (
            [
                "decode+batch:4",
                "decode+batch:4+row:1",
                "decode+batch:4+row:2",
                "decode+batch:4+row:3",
            ],
            ("row", (1, 2, 3)),
        ),
        # two values make no sweep
        (["decode", "decode+batch:2"], None),
        (["decode", "decode+batch:2", "prefill+batch:3"], None),
        # repeats differ in nothing that could be swept
        (["prefill", "decode", "decode"], None),
        (["prefill", "prefill+attn:eager", "prefill+attn:sdpa", "prefill+attn:x"], None),
        (["", "", ""], None),
    ],
)
def test_what_was_swept_is_told_from_the_paths(paths, expected, tmp_path):
    found = sweep(stored(tmp_path, paths, [0] * len(paths)))
    if found is not None:
        name, table = found
        found = name, tuple(table["value"])
    assert found == expected
