"""A run whose every text is untrusted markdown: no page makes a link, emphasis, colour, heading or
HTML of it.
"""

import re
from contextlib import suppress

import pytest
from markdown_it import MarkdownIt

from app import navigation
from app.shell.widgets import code, escape
from core.runs.ops_run import write_ops_run
from core.runs.store import labels
from tests.app.opening import open_page
from tests.core.runs.damaging import with_texts
from tests.core.runs.made_runs import copied
from tests.core.runs.test_ops_run import header, row_of
from tests.covering import covering
from tests.places import RUNS

HOSTILE = (
    "x` **boldly** [y](https://evil.example/x) :red[z] <img src=x onerror=alert(1)>"
    " www.evil.example\n\n# evil\n\n`w"
)
PAGES = {page.name: page for page in navigation.PAGES}
SAMPLES = ["where-it-starts", "fresh-against-cached", "injected-bug", "continuations-that-part"]
# Fields that Streamlit draws as they are, or not at all.
_NO_MARKDOWN = {
    "id",
    "key",
    "element_id",
    "value",
    "default",
    "url",
    "data",
    "page",
    "query_string",
    "delta",
    "script",
    "html_content",
    "raw_value",
    "json",
    "code_text",
    "columns",
}
_COMMONMARK = MarkdownIt()


def live(text):
    """What of the hostile text a reader of `text` would see as more than text."""
    found = []
    for block in _COMMONMARK.parse(text):
        if block.type.startswith("html") and "alert(" in block.content:
            found.append("HTML")
        if block.type == "inline" and block.content.strip() == "evil":
            found.append("a heading")
        depth = 0
        for part in block.children or ():
            depth += {"strong_open": 1, "strong_close": -1}.get(part.type, 0)
            target = str(part.attrs.get("href", part.attrs.get("src", "")))
            if "evil" in target:
                found.append("a link")
            if part.type == "html_inline" and "alert(" in part.content:
                found.append("HTML")
            if part.type == "text" and depth and part.content == "boldly":
                found.append("emphasis")
            if part.type == "text" and (
                "https://evil" in part.content or "www.evil" in part.content
            ):
                found.append("an address")
    if re.search(
        r"(?<!\\):red(?<!\\)\[z",
        re.sub(r"(?<!\\)(`+)(?:(?!\n\n).)*?\1", "", text, flags=re.DOTALL),
    ):
        found.append("a colour")
    return found


def texts(app):
    """(kind and field, text) of everything on the page that may be drawn as markdown."""

    def walk(node):
        yield node
        for child in getattr(node, "children", {}).values():
            yield from walk(child)

    for node in walk(app._tree):
        kind = getattr(node, "type", "")
        proto = getattr(node, "proto", None)
        if kind in ("arrow_data_frame", "plotly_chart") or not hasattr(proto, "ListFields"):
            continue
        if kind in ("table", "arrow_table"):
            frame = node.value
            yield from (
                (f"{kind}.cell", str(cell))
                for cell in (*frame.columns, *frame.index, *frame.to_numpy().ravel())
            )
            continue
        for field, text in proto.ListFields():
            if field.name in _NO_MARKDOWN:
                continue
            is_list = kind in ("radio", "button_group") and not hasattr(text, "ListFields")
            several = [text] if isinstance(text, str) else text if is_list else []
            with suppress(TypeError):
                yield from ((f"{kind}.{field.name}", str(one)) for one in several)


def seen(app):
    """Where on the page a text of others is more than text; the page shows such a text."""
    assert any("boldly" in text for _, text in texts(app))
    return {(place, what, text[:300]) for place, text in texts(app) for what in live(text)}


@pytest.fixture
def hostile(built, bare_store, monkeypatch):
    """Makes the store one with such a run made of a sample, which tests only read."""
    return lambda sample: monkeypatch.setenv("ULPSCOPE_STORE", str(built(hostile_run, sample)))


def hostile_run(store, sample):
    path = copied(store.directory / "mine.duckdb")
    path.chmod(0o644)
    path.write_bytes((RUNS / f"{sample}.duckdb").read_bytes())
    with_texts(path, HOSTILE)
    store.label(
        "mine",
        labels.Labels((HOSTILE.split("\n")[0][:40],), HOSTILE),
        store.labels("mine"),
    )


@pytest.mark.parametrize(
    ("sample", "page"),
    covering(SAMPLES, list(PAGES), whole=SAMPLES[:1]),
)
def test_no_text_of_a_run_becomes_markup(page, sample, hostile):
    hostile(sample)
    app = open_page(
        page,
        ("other_checks",),
        run="mine",
        **({"token": "301"} if page == "heatmap" else {}),
    )
    assert not app.error
    if PAGES[page].shows == "run":
        assert seen(app) == set()


def test_probes_of_operations_and_runs_side_by_side_are_inert_too(bare_store):
    hostile_run(bare_store, SAMPLES[0])
    copied(bare_store.directory / "other.duckdb")
    with_texts(bare_store.directory / "other.duckdb", HOSTILE)
    row = row_of(size=HOSTILE, modules=HOSTILE, note=HOSTILE)
    about = header(
        name=HOSTILE,
        device_name=HOSTILE,
        command=HOSTILE,
        note=HOSTILE,
        versions={"torch": HOSTILE},
    )
    write_ops_run(bare_store, about, [row, row | {"op": "sdpa", "refusal": HOSTILE}], run_id="ops")
    for page, link in (
        ("compare", {"run": "mine", "with": "other"}),
        ("machine", {"op": "mm"}),
        ("machine", {"run": "mine", "with": "other"}),
    ):
        assert seen(open_page(page, **link)) == set()
    app = open_page("runs")
    app.session_state["edited"] = "mine"
    assert seen(app.run()) == set()


def test_a_refused_file_and_a_link_that_lies_are_quoted_inert(bare_store):
    hostile_run(bare_store, SAMPLES[0])
    (bare_store.directory / "[y](evil) **boldly**.duckdb").write_bytes(b"not a database")
    for page, link in (
        ("runs", {}),
        ("overview", {"run": HOSTILE}),
        ("compare", {"run": "mine", "variant": HOSTILE, "with": HOSTILE}),
    ):
        assert seen(open_page(page, **link)) == set()


@pytest.mark.parametrize(
    "text",
    [HOSTILE, f"`{HOSTILE}`", f"**{HOSTILE}**"],
)
def test_the_measure_sees_all_that_a_text_can_become(text):
    assert set(live(text)) >= {"a link", "HTML", "emphasis", "a colour", "an address", "a heading"}
    assert live(escape(HOSTILE)) == live(f"`{code(HOSTILE)}`") == []
