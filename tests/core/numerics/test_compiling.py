"""A user hears of kernels that are compiled, and only then."""

import os
import subprocess
import sys

from core.numerics import divergence
from core.numerics.formats import FLOAT32


def test_an_empty_cache_is_told_from_a_filled_one(tmp_path):
    code = (
        "from core.numerics import divergence, formats;"
        " print(divergence.is_compiled(formats.FLOAT32))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == "False"
    divergence.prepare(FLOAT32)
    assert divergence.is_compiled(FLOAT32)
