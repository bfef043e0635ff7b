"""What is observed at a few positions says of how many rows it was looked for, and of how many there are."""

from __future__ import annotations

import numpy as np
import pytest

from core.judging.explain.observations import jumps
from core.judging.explain.rows import complete_rows


@pytest.mark.parametrize(("positions", "looked_at"), [(48, "1 of 48 rows ("), (64, "1 of 48 rows sampled of 64 (")])
def test_a_jump_counts_the_rows_that_were_looked_at(positions, looked_at):
    random = np.random.default_rng(0)
    sides = [random.standard_normal((positions, 512))]
    sides.append(sides[0] + random.standard_normal((positions, 512)) * 1e-5)
    sides[1][0] += random.standard_normal(512)
    rows = complete_rows(
        ("a", "b"), "float32", ((),), [positions], 512, lambda side, prompt, at: sides[side][at].astype(np.float32)
    )
    (cause,) = jumps(rows)
    assert cause.says.startswith(f"{looked_at}position 0)")
