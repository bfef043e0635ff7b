"""What is heavy is loaded when it is used: commands and pages start without it."""

import pytest

from tests.shell import python

COMPUTING = ("torch", "transformers", "numba", "scipy", "pandas")
EVERY_COMMAND = "core.__main__ as main\nfor name in main.MODULES: main.load(name)"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        (EVERY_COMMAND, (*COMPUTING, "duckdb", "streamlit", "ray")),
        ("core.pytest_plugin", (*COMPUTING, "duckdb", "streamlit", "ray")),
        ("core.runs.writer, core.judging.ingest", ("torch", "transformers", "streamlit", "plotly")),
        ("app.main", COMPUTING),
        ("app.navigation", (*COMPUTING, "duckdb", "streamlit", "plotly")),
    ],
)
def test_a_module_starts_without_what_is_heavy(module, heavy):
    code = f"import {module}\nimport sys\nprint(*sorted(set({heavy!r}) & set(sys.modules)))"
    done = python(code)
    assert done.stdout == "\n"
    assert done.stderr == ""
