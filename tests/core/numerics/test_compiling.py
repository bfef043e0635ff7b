"""A user hears of kernels that are compiled, and only then."""

import pytest

from core.numerics import divergence
from core.numerics.formats import FLOAT32
from core.subprocess_json import Child
from tests.shell import python

SPARE = """
import time
from core.__main__ import app
from core.commands import ingesting
ingesting._SPARE_SECONDS = 1
ingesting.prepare = lambda fmt: time.sleep(1.5)
app(["spare"], prog_name="ulpscope")
"""


def test_an_empty_cache_is_told_from_a_filled_one(tmp_path):
    # numba reads the variable when it is imported: only another process sees an empty cache
    code = (
        "from core.numerics import divergence, formats;"
        " print(divergence.is_compiled(formats.FLOAT32))"
    )
    assert python(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout == "False\n"
    divergence.prepare(FLOAT32)
    assert divergence.is_compiled(FLOAT32)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_spare_process_has_a_limit_for_waiting_and_none_for_compiling(is_asked):
    with Child(["-c", SPARE], is_asked=True) as process:
        if is_asked:
            process.ask({"arguments": ["no-such-command"]})
        list(process.messages())
    assert process.code == (2 if is_asked else 0)
