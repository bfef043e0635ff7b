"""A user hears of kernels that are compiled, and only then."""

from core.numerics import divergence
from core.numerics.formats import FLOAT32
from tests.shell import python


def test_an_empty_cache_is_told_from_a_filled_one(tmp_path):
    # numba reads the variable when it is imported: only another process sees an empty cache
    code = (
        "from core.numerics import divergence, formats;"
        " print(divergence.is_compiled(formats.FLOAT32))"
    )
    assert python(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout == "False\n"
    divergence.prepare(FLOAT32)
    assert divergence.is_compiled(FLOAT32)
