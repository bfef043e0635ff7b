"""A run of a server's state on the Overview: its worst axis first, and a table of all."""

from tests.app.opening import open_page
from tests.core.probing.made_state import made_state, stored


def test_the_axes_are_a_table_and_the_worst_is_selected(own_store):
    app = open_page("overview", run=stored(own_store, made_state(1e-3, 0.9)))
    table = next(each.value for each in app.dataframe if "axis" in each.value)
    results = table.set_index("axis")["result"]
    assert list(results[:2].items()) == [("warm", "beyond"), ("continuation", "within the noise")]
    assert set(results[2:]) == {"not available"}
    assert any("Bug suspected" in each.value for each in app.header)
