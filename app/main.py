"""The dashboard: `streamlit run app/main.py`. Navigation, the selection in the sidebar, and the HTTP routes."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # `streamlit run` puts only app/ on the path
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402  (the path above comes first)
from streamlit.runtime.scriptrunner import get_script_run_ctx  # noqa: E402

from app import state, widgets  # noqa: E402
from app.routes import ROUTES  # noqa: E402


def draw() -> None:
    """One viewer's script run."""
    st.set_page_config(page_title="ULPscope", page_icon=str(ROOT / "app" / "favicon.png"), layout="wide")
    folder = ROOT / "pages"
    page = st.navigation(
        {
            "": [
                st.Page(folder / "runs.py", title="Runs", url_path="runs", default=True),
                st.Page(folder / "overview.py", title="Overview", url_path="overview"),
                st.Page(folder / "near_ties.py", title="Near ties", url_path="near_ties"),
                st.Page(folder / "heatmap.py", title="ULP heatmap", url_path="heatmap"),
                st.Page(folder / "flips.py", title="Flips", url_path="flips"),
                st.Page(folder / "capture.py", title="Capture", url_path="capture"),
                st.Page(folder / "upload.py", title="Upload", url_path="upload"),
            ]
        }
    )
    view = widgets.sidebar()
    state.write_address(view)
    st.session_state["view"] = view
    if st.session_state.pop("unknown_run", False) and page.url_path not in ("", "runs"):
        st.switch_page(folder / "runs.py")
    widgets.say_complaints()
    page.run()


if get_script_run_ctx(suppress_warning=True) is not None:
    draw()
else:
    app = st.App(__file__, routes=ROUTES)
