"""Ops: which torch operations of a machine are the same from run to run, over batch sizes and at every row, machines
beside each other.
"""

import streamlit as st

from app.components.code_block import code_block
from app.ops import PAGE, form, parts
from app.shell import exports, store_changes, widgets
from core.runs.reports.ops_wording import beside
from core.text import plural

jobs = store_changes.jobs()
widgets.title(PAGE)
found = parts.cards()
lead, probing = st.container(), st.container()
with probing.expander("Probe this machine", expanded=not found):
    form.start(jobs)
if not found:
    lead.info(
        "No operations were probed yet. Probe this machine below, or on any machine from the command line; a run file"
        " put into this store appears here."
    )
    code_block(parts.COMMAND)
    st.stop()
runs = parts.pick(found)
if not runs:
    st.stop()
with lead:
    parts.summary(runs)
everything = beside(runs)
shown = parts.ask(everything)
if shown:
    parts.table(shown, runs)
    st.caption(
        f"{len(shown):,} of {plural(len(everything), 'probe')}; a click on a row's box opens its classes."
        + (" M1, M2 are the machines above." if len(runs) > 1 else "")
    )
else:
    st.info("No probe is left by these filters.")
selected = next((one for one in everything if parts.key_words(one) == st.session_state.get("ops_row")), None)
if selected is not None:
    parts.detail(selected, runs)
exports.download({"probes": parts.listed(everything, runs)}, "ops", "ops")
with st.expander("Versions, settings and commands"):
    st.table(parts.provenance(runs), border="horizontal")
