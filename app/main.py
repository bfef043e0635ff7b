"""The dashboard: `streamlit run app/main.py`.

Navigation, the selection in the sidebar, and the HTTP routes.
"""

import gc
import sys
from pathlib import Path

# What is imported stays. To look through it at every 700 objects took a sixth of the start.
gc.set_threshold(50_000)

ROOT = Path(__file__).resolve().parents[1]
# `streamlit run` puts only app/ on the path; tests and uvicorn run from the root and hide that.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
# In the wheel the folder core/ is the package ulpscope.
if "core" not in sys.modules and not (ROOT / "core").is_dir():
    from ulpscope import OneCopy

    OneCopy("core", "ulpscope")

import streamlit as st  # noqa: E402  (the path above comes first)
from streamlit.runtime.scriptrunner import get_script_run_ctx  # noqa: E402

from app.hosting import gate, members  # noqa: E402
from app.navigation import FIRST, MOVED, PAGE_OF, PAGES  # noqa: E402
from app.routes import ROUTES  # noqa: E402
from app.shell import address, job_list, sidebar, widgets  # noqa: E402
from app.upload.importing import lifespan  # noqa: E402
from core.errors import UlpscopeError  # noqa: E402


def draw() -> None:
    """Run one viewer's script."""
    st.set_page_config(page_icon=ROOT / "app" / "shell" / "favicon.png", layout="wide")
    st.html(ROOT / "app" / "shell" / "style.css")
    # Streamlit finds only scripts next to the entry file by itself; pages/ is next to app/.
    pages = {
        page.name: st.Page(
            ROOT / "pages" / f"{page.name}.py",
            title=f"{page.title} · ULPscope",
            url_path=page.name,
            default=page.name == FIRST,
        )
        for page in PAGES
    }
    # Streamlit knows only the pages it is given, so an earlier address is one that leads on.
    redirects = [st.Page(draw, url_path=old, visibility="hidden") for old in MOVED]
    page = st.navigation([*pages.values(), *redirects], position="hidden")
    name = page.url_path or FIRST
    if name in MOVED:
        part = MOVED[name]
        tab = {} if part in pages else {"tab": part}
        st.switch_page(pages[PAGE_OF[part].name], query_params=st.query_params.to_dict() | tab)
    # What was opened is shown here; until then a rerun does not lose it.
    if st.session_state.get("opened") == name:
        del st.session_state["opened"]
    widgets.forget_clicks(name)
    st.sidebar.markdown("**ULPscope** :small[rounding, or a bug?]")
    links = st.sidebar.container()
    # Before any widget is drawn: Streamlit refuses to set the value of one that is.
    address.adopt(name)
    try:
        view = sidebar.draw(PAGE_OF[name])
    except UlpscopeError as error:
        # a store in object storage that does not answer
        st.error(widgets.escape(str(error)))
        st.stop()
    st.session_state["view"] = view
    if st.session_state.pop("astray", False) and name != FIRST:
        st.switch_page(pages[FIRST])
    address.settle_settings(name, view)
    address.write(address.of(view))
    if opened := st.session_state.get("opened"):
        st.switch_page(pages[opened])
    with links:
        sidebar.page_links(view)
        job_list.running()
        st.divider()
        sidebar.link_to(view)
    members.sidebar()
    for sentence in st.session_state.pop("complaints", []):
        st.warning(widgets.escape(sentence))
    try:
        page.run()
    # a damaged block, or a run deleted between the sidebar and the page
    except UlpscopeError as error:
        st.error(widgets.escape(str(error)))


# The server imports this file for its routes, and runs it for each viewer. It finds the
# application by reading the source, so the call has to stay as literal as it is.
if get_script_run_ctx(suppress_warning=True) is not None:
    draw()
else:
    app = st.App(__file__, routes=ROUTES, middleware=gate.protection(), lifespan=lifespan)
