"""Ops: which torch operations of a machine are the same from run to run, over batch sizes and at every row, machines
beside each other.
"""

import streamlit as st

from app.components.code_block import code_block
from app.ops import form, parts
from app.shell import exports, store_cache
from core.runs.reports.ops_wording import beside

jobs = store_cache.jobs()
st.title("Ops")
st.caption(
    "Torch operations on their own, called again and again on the same bits. Run to run: every call gives the same"
    " bits. Batch size: row 0 has the same bits alone and among N rows. Row position: a row has the same bits at every"
    " index of a batch. A change with the batch size is another order of summation, not a fault; a change from run to"
    " run makes any two runs differ."
)
found = parts.cards()
with st.expander("Probe this machine", expanded=not found):
    form.start(jobs)
if not found:
    st.info(
        "No operations were probed yet. Probe this machine above, or on any machine from the command line; a run file"
        " put into this store appears here."
    )
    code_block(parts.COMMAND)
    st.stop()
runs = parts.pick(found)
if not runs:
    st.stop()
parts.summary(runs)
everything = beside(runs)
shown = parts.ask(everything)
if shown:
    parts.table(shown, runs)
    st.caption(
        f"{len(shown):,} of {len(everything):,} probes; a click on a row's box opens its classes. Sizes are of one row"
        " and of what all rows share; a span such as 4..64 is of the batch sizes that were tried."
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
