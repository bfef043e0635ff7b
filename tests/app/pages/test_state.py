"""A run of a server's state on the Overview: its worst axis first, and a table of all."""

from core.judging.state import judge_state
from core.runs.file.records import Provenance
from core.runs.response_run import write_responses
from tests.app.opening import open_page
from tests.core.probing.made_state import made_state


def test_the_axes_are_a_table_and_the_worst_is_selected(own_store):
    state = made_state(1e-3, 0.9)
    sides, pairs, verdicts = judge_state(state, [state.cold, *state.sides.values()])
    origin = Provenance("upload", "made")
    write_responses(own_store, "state", origin, sides, pairs, verdicts, run_id="state")
    app = open_page("overview", run="state")
    assert not app.exception
    table = next(each.value for each in app.dataframe if "axis" in each.value)
    results = table.set_index("axis")["result"]
    assert list(results[:2].items()) == [("warm", "beyond"), ("continuation", "within the noise")]
    assert set(results[2:]) == {"not available"}
    assert any("Bug suspected" in each.value for each in app.header)
