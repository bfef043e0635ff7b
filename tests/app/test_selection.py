"""One selection in the address: what a link restores, what it may not say, and what the steps and
the strip are given.
"""

import shutil

import pandas as pd
import pytest
from streamlit.util import calc_hash

from app import navigation
from app.components import stepper
from app.overview import token_strip
from app.shell import address, selection
from core.runs.queries.heat import COLOURS, heat
from core.runs.reader import RunReader
from tests.app import opening
from tests.app.opening import click, enter
from tests.core.runs.made_runs import sample
from tests.places import ROOT

# two prompts of 442 and 287 positions, one variant, flips at 144 of prompt 0, and at 30, 36 and 239
# of prompt 1
RUN = "fresh-against-cached"

pytestmark = pytest.mark.usefixtures("own_store")


def followed(page="runs", **link):
    """A new viewer's page at an address."""
    return opening.drawn(opening.followed(page, **link))


def warnings(app):
    """The sentences at the top, as a reader sees them."""
    return "\n".join(
        str(element.value).replace("\\", "").replace("\N{WORD JOINER}", "")
        for element in app.warning
    )


def title(app):
    return app.title[0].value


NOT_THERE = {
    "an unknown run": ({"run": "no-such-run"}, "The run 'no-such-run' is not here"),
    "an empty run": ({"run": ""}, "The run '' is not here"),
    "markup": (
        {"run": "![x](http://x.example/y.png)<script>"},
        "The run '![x](http://x.example/y.png)<script>' is not here",
    ),
    # less its signs
    "control characters": ({"run": "a\x00b\n# c\u202e"}, "The run 'ax00bn# cu202e' is not here"),
    "a very long run": ({"run": "r" * 5000}, "The run '" + "r" * 59 + "…' is not here"),
    "an unknown variant": (
        {"run": RUN, "variant": "nonsense"},
        "asks for variant 'nonsense'; this run has 'decode'",
    ),
}
OUT_OF_RANGE = {  # the link, the place that opens, and a part of the sentence
    "a prompt too far": ({"prompt": "2"}, ("1", "30"), "prompt '2'; this run has 0 to 1"),
    "a position too far": (
        {"prompt": "1", "position": "287"},
        ("1", "286"),
        "position '287'; this run has 0 to 286",
    ),
    "a negative position": (
        {"position": "-1"},
        ("0", "0"),
        "asks for position '-1'; this run has 0 to 441",
    ),
    "too many digits": (
        {"position": "9" * 6000},
        ("0", "0"),
        "9…'; this run has 0 to 441, and 0 is selected",
    ),
    "what only Python reads": (
        {"position": "1_0"},
        ("0", "0"),
        "'1_0'; this run has 0 to 441, and 0 is selected",
    ),
    "other digits": (
        {"position": "\u0663"},
        ("0", "0"),
        "this run has 0 to 441, and 0 is selected",
    ),
}


@pytest.mark.parametrize(
    ("tab", "title", "count"),
    [("choices", "Layers", 1), ("kernels", "Kernels", 0), ("nonsense", "Layers", 1)],
)
def test_a_link_to_a_tab_without_data_says_which_one_is_open(tab, title, count):
    app = followed("internals", run="where-it-starts", tab=tab)
    assert app.session_state["internals_tab"] == title
    assert len(app.warning) == count
    # a link that names no tab
    app.query_params.pop("tab")
    app.switch_page("../pages/compare.py").run()
    assert warnings(app) == ""


@pytest.mark.parametrize(
    ("link", "sentence"),
    NOT_THERE.values(),
    ids=NOT_THERE,
)
def test_a_link_to_what_is_not_there_gets_a_sentence_and_the_gallery(link, sentence):
    app = followed("overview", **link)
    assert not app.error
    assert title(app) == "Runs"
    assert sentence in warnings(app)


@pytest.mark.spread(7)
@pytest.mark.parametrize(
    ("link", "place", "sentence"),
    OUT_OF_RANGE.values(),
    ids=OUT_OF_RANGE,
)
def test_a_link_to_a_position_out_of_range_opens_its_page_at_the_nearest_one(link, place, sentence):
    app = followed("near_ties", run=RUN, **link)
    assert title(app) == "Near ties"
    assert (app.query_params["prompt"], app.query_params["position"]) == place
    assert sentence in warnings(app)


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ({}, ("0", "144")),  # the first flip of the run
        ({"prompt": "1"}, ("1", "30")),  # of the prompt
        ({"position": "0"}, ("0", "0")),  # what a link names stays as it is
        ({"prompt": "1", "position": "7"}, ("1", "7")),
    ],
)
def test_a_link_without_a_position_opens_at_the_first_flip_and_one_with_a_position_there(
    link,
    place,
):
    app = followed("near_ties", run=RUN, **link)
    assert (app.query_params["prompt"], app.query_params["position"]) == place


def test_a_link_to_another_run_within_a_session_leaves_the_position_of_the_last_one():
    app = followed("near_ties", run=RUN, prompt="1", position="7")
    # as a browser's click on a link asks: AppTest.switch_page would drop the query
    app._page_hash = calc_hash("flips")
    app.query_params.clear()
    app.query_params |= {"run": "batch-1-against-n", "variant": "prefill"}
    app.run()
    assert app.query_params["run"] == "batch-1-against-n"
    assert app.query_params["position"] == "30"


def test_links_to_pages_carry_the_selection_and_say_what_a_run_does_not_hold():
    app = followed("near_ties", run=RUN, position="7")
    links = {link.proto.label: link.proto.query_string for link in app.sidebar.get("page_link")}
    assert len(links) == len(navigation.PAGES)
    assert {"Flips", "Internals", "New run"} <= set(links)
    assert "position=7" in links["Flips"]


@pytest.mark.parametrize("way", ["a key", "Back", "another page"])
def test_only_back_and_another_page_read_an_address_that_was_replaced(way, monkeypatch):
    """Keys that are pressed faster than pages are drawn ask with the address that the browser had
    by then.
    """
    app = followed("near_ties", run=RUN, variant="decode", prompt="1", position="36")
    earlier = dict(app.query_params)
    enter(app, "number_input", "position", 37)
    assert app.query_params["position"] == "37"
    if way == "Back":
        monkeypatch.setattr(address, "is_back", lambda: True)
    elif way == "another page":
        app._page_hash = calc_hash("flips")
    for key, value in earlier.items():
        app.query_params[key] = value
    if way == "a key":
        app.number_input(key="position").set_value(38)
    app.run()
    expected = "38" if way == "a key" else "36"
    assert app.query_params["position"] == expected
    assert app.number_input(key="position").value == int(expected)


def test_a_second_run_says_again_what_the_widgets_of_a_link_show():
    """It may come before the browser has drawn the first."""
    app = followed(
        "overview",
        run=RUN,
        variant="decode",
        prompt="1",
        position="36",
        colour="mean-ulps",
    )
    app.run()
    chosen = [app.selectbox(key=key) for key in ("run", "variant", "strip_colour")]
    assert [box.value for box in chosen] == [RUN, "decode", "mean ULPs"]
    # Streamlit sends a value that the script set once, unless it is set again
    assert all(box.proto.set_value for box in chosen)


def test_a_link_without_a_store_gets_a_sentence_and_the_empty_state(monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    app = followed("flips", run="gone", position="x")
    assert "The run 'gone' is not here" in warnings(app)
    assert "No runs yet" in app.info[0].value


def test_open_run_on_a_deleted_run_says_so_and_opens_no_other():
    app = followed("capture", run=RUN)
    app.session_state["open_next"] = "captured-and-deleted"  # what the button leaves behind
    app.session_state["opened"] = "overview"
    opening.drawn(app)
    assert title(app) == "Runs"
    assert "'captured-and-deleted' was deleted" in warnings(app)
    assert "opened" not in app.session_state  # or the gallery would go on to another run
    assert app.query_params["run"] == RUN


NOT_IN_THIS_RUN = ("layers", "choices", "kernels", "classes", "sweeps")
WITH_SETTINGS = {
    part.name: part.settings
    for part in navigation.PARTS.values()
    if part.settings and part.name not in NOT_IN_THIS_RUN
}
# What free text may ask for: of other settings a value that is not the default is found.
TEXTS = {("side_by_side", "with"): "fresh-against-cached", ("runs", "search"): "fresh"}


def is_checked(setting):
    return bool(setting.words) or setting.span is not None


def asked_of(page):
    """Words that a link may say of a page's settings, each at another value than its default."""
    said = {name: text for (of, name), text in TEXTS.items() if of == page}
    for setting in WITH_SETTINGS[page]:
        if is_checked(setting):
            values = setting.words or {str(number): number for number in setting.span}
            said[setting.name] = next(
                word for word, value in values.items() if value != setting.default
            )
    return said


@pytest.mark.spread(4)
@pytest.mark.parametrize("page", WITH_SETTINGS)
def test_a_link_restores_what_the_pages_own_controls_were_set_to(page):
    said = asked_of(page)
    app = followed(page, run=RUN, prompt="1", position="36", **said)
    assert warnings(app) == ""
    for setting in (setting for setting in WITH_SETTINGS[page] if setting.name in said):
        assert app.session_state[setting.key] == setting.parse(said[setting.name])
        assert app.query_params[setting.name] == said[setting.name]
    app.run()
    assert {name: app.query_params[name] for name in said} == said


@pytest.mark.spread(12)
@pytest.mark.parametrize(
    "value",
    ["nonsense", "-1", "65", "4.0", "9" * 5000, "<b>", "\x00"],
)
@pytest.mark.parametrize("page", WITH_SETTINGS)
def test_a_link_with_impossible_settings_gets_sentences_and_the_defaults(page, value):
    settings = [setting for setting in WITH_SETTINGS[page] if is_checked(setting)]
    app = followed(page, run=RUN, prompt="1", **{setting.name: value for setting in settings})
    assert not app.error
    for setting in settings:
        assert f"asks for {setting.name} '" in warnings(app)
        assert app.session_state[setting.key] == setting.default
        assert setting.name not in app.query_params


def test_a_run_opens_at_the_first_variant_of_its_gravest_verdict(own_store):
    own_store.directory.mkdir()
    # one variant is identical, the next one rounding
    shutil.copy(ROOT / "sample_runs" / "batches-on-an-h100.duckdb", own_store.directory)
    app = followed("overview", run="batches-on-an-h100")
    assert app.query_params["variant"] == "prefill"
    app = followed("overview", run="batches-on-an-h100", variant="decode+batch:8")
    assert app.query_params["variant"] == "decode+batch:8"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trainer-against-rollout", {"heatmap": "no rows", "internals": "not captured"}),
        ("batches-on-an-h100", {"heatmap": "empty"}),  # identical, with kernels
        ("vllm-against-transformers", {"internals": "not captured"}),
        ("where-it-starts", {}),
    ],
)
def test_the_navigation_marks_what_is_empty(name, words):
    with RunReader(ROOT / "sample_runs" / f"{name}.duckdb") as run:
        absent = navigation.absent(run, 0)
    assert {page: absent[page] for page in ("heatmap", "internals") if page in absent} == words


def test_settings_outlive_a_page_switch_and_are_in_their_pages_link_only():
    app = followed("overview", run=RUN, prompt="1")
    enter(app, "selectbox", "strip_colour", "mean ULPs")
    assert app.query_params["colour"] == "mean-ulps"
    app.switch_page("../pages/near_ties.py").run()
    assert "colour" not in app.query_params
    enter(app, "slider", "threshold", 9)
    assert app.query_params["threshold"] == "9"
    app.query_params.clear()  # as a switch by st.switch_page does; links carry their page's own
    app.switch_page("../pages/overview.py").run()
    assert app.selectbox(key="strip_colour").value == "mean ULPs"
    assert app.query_params["colour"] == "mean-ulps"
    assert "threshold" not in app.query_params


def view_of(run, prompt=0, position=0):
    return selection.View(run, run.pairs[0], prompt, position, run.positions(0))


def test_steps_lead_to_the_positions_that_sql_finds():
    with sample(RUN) as run:
        places = stepper.places(view_of(run, prompt=1))
        rows = run._database.rows(
            "SELECT prompt, position FROM position WHERE near_tie ORDER BY prompt, position",
        )
    assert places == {
        "position": [(1, position) for position in range(287)],
        "flip": [(0, 144), (1, 30), (1, 36), (1, 239)],
        "near tie": rows,
    }


def test_buttons_step_from_flip_to_flip_of_every_prompt_and_end_there():
    app = followed("near_ties", run=RUN, prompt="0", position="0")
    assert app.button(key="previous_flip").disabled
    for place in (("0", "144"), ("1", "30"), ("1", "36"), ("1", "239")):
        click(app, "next_flip")
        assert (app.query_params["prompt"], app.query_params["position"]) == place
    assert app.button(key="next_flip").disabled
    click(app, "worst")
    assert app.query_params["position"] == "204"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"position": 36}, 36),
        ({"position": 999}, 7),
        ({"position": "36"}, 7),
        ({"position": 36, "stamp": "another-run 0 1"}, 7),
        (["x"], 7),
        ({}, 7),
    ],
)
def test_what_the_browser_asks_for_is_checked(asked, expected, monkeypatch):
    with sample(RUN) as run:
        view = view_of(run, prompt=1, position=7)
        go = {"stamp": selection.stamp(view), **asked} if isinstance(asked, dict) else asked
        session = {"view": view, "position": 7, "strip": {"go": go}}
        # no script runs here, so a plain dict stands in for Streamlit's session
        monkeypatch.setattr("streamlit.session_state", session)
        token_strip._go("strip", view)
    assert session["position"] == expected


def table():
    """Three positions: equal, a near tie, a flip."""
    figures = {
        "max_abs": [0.0, 0.25, 1.0],
        "max_ulps": [0, 10, 1000],
        "mean_ulps": [0.0, 0.5, 2.0],
        "max_row_ulps": [0.0, 1.0, 4.0],
        "neq": [0, 5, 10],
        "kl": [0.0, 1e-6, 1e-2],
        "reference_margin": [4.0, 0.5, 0.1],
        "variant_margin": [4.0, 0.75, 0.2],
        "is_flip": [False, False, True],
        "near_tie": [False, True, True],
    }
    return pd.DataFrame(figures)


@pytest.mark.parametrize(
    ("colour", "levels", "ends"),
    [
        ("largest difference", [0, 25, 100], ("0", "1")),
        ("mean ULPs", [0, 25, 100], ("0", "2")),
        ("max row ULPs", [0, 25, 100], ("0", "4")),
        ("logits that differ", [0, 50, 100], ("0", "10")),
        ("max ULPs", [0, 13, 100], ("10", "1,000")),  # 0.7 of 0.7 + ln 100
        ("KL", [0, 7, 100], ("1e-6", "0.01")),  # 0.7 of 0.7 + ln 10000
        ("near ties", [0, 100, 100], ("0", "1 or more: could flip")),
        ("flips", [0, 30, 100], (None, None)),
    ],
)
def test_heat_runs_from_nothing_to_the_largest_and_the_legend_has_both_ends(colour, levels, ends):
    shade = heat(table(), colour, "bfloat16")
    assert shade.levels.tolist() == levels
    assert (shade.low, shade.high) == ends


@pytest.mark.parametrize("colour", COLOURS)
def test_nothing_differs_nothing_is_coloured(colour):
    equal = table().iloc[[0, 0, 0]]
    assert heat(equal, colour, "float32").levels.tolist() == [0, 0, 0]
