"""A page as a new viewer sees it who followed a link, and all that it says."""

import json
from functools import cache

from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import AppTest, app_test, local_script_runner
from streamlit.util import calc_hash

from app import navigation
from app.components import plots
from tests.places import ROOT


def _wait_for(runner, timeout):
    """Streamlit's own looks a thousand times a second, and takes the interpreter from the page that
    it waits for.
    """
    runner._script_thread.join(timeout)
    if runner._script_thread.is_alive():
        runner.request_stop()
        runner.join()
        raise RuntimeError(f"AppTest script run timed out after {timeout}(s)")


# A server looks once which installed packages bring components, and compiles a script once. In a
# test every viewer is a server of its own: the look takes half a second, the scripts of a page take
# a tenth.
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)
app_test.ScriptCache = local_script_runner.ScriptCache = cache(ScriptCache)
local_script_runner.require_widgets_deltas = _wait_for
plots.LONG = 1 << 30  # AppTest sends no files


def followed(page="runs", **link):
    """A new viewer who followed a link to a page or tab, before anything is drawn: a switch would
    draw the gallery first and drop the page's settings.
    """
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=300)
    part = navigation.MOVED.get(page, page)
    page = navigation.PAGE_OF[part].name
    if part != page:
        link["tab"] = part
    for key, value in link.items():
        app.query_params[key] = value
    app._page_hash = "" if page == "runs" else calc_hash(page)
    return app


def open_page(page, open_=(), **link):
    """Opened by its address, without an exception. open_: expanders that the viewer has
    unfolded.
    """
    app = followed(page, **link)
    for key in open_:
        app.session_state[key] = True
    return drawn(app)


def drawn(app):
    """The page, drawn once more, without an exception."""
    app.run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def click(app, key):
    """The page after a click on a button."""
    app.button(key=key).click()
    return drawn(app)


def enter(app, kind, key, value):
    """The page after something was entered into a control of a kind, as `text_input`."""
    getattr(app, kind)(key=key).set_value(value)
    return drawn(app)


def page_text(app):
    """All text of the page, as a reader sees it: without the signs that keep names of others from
    being markdown.
    """
    kinds = (
        "title",
        "markdown",
        "caption",
        "info",
        "success",
        "warning",
        "error",
        "subheader",
    )
    texts = [str(element.value) for kind in kinds for element in getattr(app, kind)]
    text = "\n".join([*texts, *(fold.label for fold in app.expander)])
    return text.replace("\\", "").replace("\N{WORD JOINER}", "")


def keys(app):
    """Keys of the buttons."""
    return {str(button.key) for button in app.button}


def codes(app):
    """The texts that the page shows to be copied."""
    return [element.value for element in app.code]


def table_of(app):
    """The first table of the page."""
    return app.dataframe[0].value


def metrics(app):
    return {metric.label: metric.value for metric in app.metric}


def sent(app, component):
    """What the page sends to each of its components of a name."""
    parts = (element.proto for element in app.get("bidi_component"))
    return [json.loads(part.json) for part in parts if part.component_name == component]


def figures_of(app):
    """Figures of the page, in their order: what each is sent, its plot under `figure`."""
    return [{**one, "figure": json.loads(one["spec"])} for one in sent(app, "ulpscope_figure")]
