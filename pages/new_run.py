"""New run: upload a dump, capture a model, probe a server; watch, cancel, open the finished run."""

import streamlit as st

from app.capture import tab as capture
from app.hosting import members
from app.navigation import NEW_RUN
from app.probe import tab as probe
from app.shell import widgets
from app.upload import tab as upload

# What these forms start is refused on a read-only server, so they are not drawn.
if not members.may_change():
    widgets.title(NEW_RUN)
    st.info(members.READ_ONLY)
    st.stop()
widgets.tabs(
    NEW_RUN,
    {"upload": upload.draw, "capture": capture.draw, "probe": probe.draw},
)
